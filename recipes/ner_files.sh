# The files of named-entity recognition; sourced by ner.sh and features_ner.sh, after common.sh.

# Sets TRAIN, DEV and TEST: CoNLL-2003's own names, or train.conll, dev.conll, test.conll; TEST may be empty.
find_conll() {
    local names=(eng.train eng.testa eng.testb)
    if [[ "$SCALE" == laptop || -e "$1/train.conll" ]]; then names=(train.conll dev.conll test.conll); fi
    need_path "$1/${names[0]}"
    need_path "$1/${names[1]}"
    TRAIN="$1/${names[0]}"
    DEV="$1/${names[1]}"
    TEST=""
    if [[ -e "$1/${names[2]}" ]]; then TEST="$1/${names[2]}"; fi
}
