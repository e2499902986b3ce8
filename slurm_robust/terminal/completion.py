"""What makes a shell complete command lines of ``srobust``: it asks the ``srobust`` that is typed."""

from __future__ import annotations

SCRIPTS = {
    "bash": """_srobust() {
    local cur=${COMP_WORDS[COMP_CWORD]} found IFS=$'\\n'
    [[ $cur == = ]] && cur=
    found=$("$1" completion --words "${COMP_WORDS[@]:1:COMP_CWORD-1}" "$cur" 2>/dev/null)
    if [[ $found == :files ]]; then
        compopt -o filenames
        COMPREPLY=($(compgen -f -- "$cur"))
    else
        COMPREPLY=($found)
    fi
}
complete -F _srobust srobust
""",
    "zsh": """#compdef srobust
_srobust() {
    local -a found
    found=("${(@f)$("${words[1]}" completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ $found[1] == :files ]]; then
        _files
    else
        compadd -- ${found:#}
    fi
}
if [[ $funcstack[1] == _srobust ]]; then
    _srobust "$@"
else
    compdef _srobust srobust
fi
""",
}
"""By shell."""

PLACES = {
    "bash": "share/bash-completion/completions/srobust",
    "zsh": "share/zsh/site-functions/_srobust",
}
"""By shell: the file below /usr or /usr/local that it loads by itself."""
