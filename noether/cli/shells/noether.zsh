#compdef noether noether-train noether-train-submit-job
# zsh completion of noether. In ~/.zshrc, after compinit:  source <(noether completion zsh)
_noether() {
    local -a found whole begun
    found=("${(@f)$("${words[1]}" __complete zsh "${(@Q)words[1,CURRENT]}" 2>/dev/null)}")
    # A completion that ends in =, / or . is only part of a word: no blank after it.
    begun=("${(@M)found:#*[=/.]}")
    whole=("${(@)found:#*[=/.]}")
    (( ${#begun} )) && [[ -n $begun[1] ]] && compadd -S '' -- "${begun[@]}"
    (( ${#whole} )) && [[ -n $whole[1] ]] && compadd -- "${whole[@]}"
}
compdef _noether noether noether-train noether-train-submit-job
