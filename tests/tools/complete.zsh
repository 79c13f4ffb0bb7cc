#!/usr/bin/zsh -f
# complete.zsh DIR LINE... - what an interactive zsh with the completions of DIR makes of each LINE and a
# tab, one line each.
emulate -R zsh
zmodload zsh/zpty
dir=$1
shift

zpty shell zsh -f -i
# shown WORDS: what the shell prints between <( and )>, without what it echoes.
shown() {
    local said part
    zpty -w -n shell "$1"
    said=
    until [[ $said == *$'\1'*$'\2'* ]]; do zpty -r shell part || exit 1; said+=$part; done
    said=${said#*$'\1'}
    print -r -- "${said%%$'\2'*}"
}
zpty -w shell "PROMPT= RPROMPT=; unsetopt zle_bracketed_paste 2>/dev/null; fpath=(${(q)dir} \$fpath); autoload -Uz compinit && compinit -u -D"
zpty -w shell 'tell() { print -r -- $'"'\\1'"'"$BUFFER"$'"'\\2'"'; BUFFER=; }; zle -N tell; bindkey "^X" tell; bindkey "^I" complete-word'
for line; do
    shown "$line"$'\t\30'
done
zpty -d shell
