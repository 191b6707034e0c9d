# fish completion of noether. Once:  noether completion fish > ~/.config/fish/completions/noether.fish
function __noether_complete
    set -l words (commandline -opc)
    $words[1] __complete fish $words (commandline -ct) 2>/dev/null
end
for program in noether noether-train noether-train-submit-job
    complete -c $program -f -a '(__noether_complete)'
end
