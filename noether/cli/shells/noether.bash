# bash completion of noether. In ~/.bashrc:  source <(noether completion bash)
_noether() {
    local candidate
    COMPREPLY=()
    while IFS= read -r candidate; do
        COMPREPLY+=("$candidate")
    done < <("${COMP_WORDS[0]}" __complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    # A completion that ends in =, / or . is only part of a word: no blank after it.
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/.] ]]; then
        compopt -o nospace
    fi
}
complete -F _noether noether noether-train noether-train-submit-job
