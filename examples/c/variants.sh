#!/bin/sh
# usage: variants.sh FOLDER
# A header for a folder of emitted headers: includes them, and lists the dispatch and the combine of each world size.
set -eu
cd "$1"
upper() { printf %s "$1" | tr '[:lower:]' '[:upper:]'; }

echo '/* Made by variants.sh. */'
for header in moe_*.h; do echo "#include \"$header\""; done
echo
echo '/* X(ranks, dispatch, DISPATCH, combine, COMBINE) for each world size. */'
echo '#define FOR_EACH_WORLD(X) \'
for dispatch in moe_dispatch_*.h; do
    ranks=$(printf %s "$dispatch" | sed 's/.*_r\([0-9]*\)_.*__.*/\1/')
    combine=$(echo moe_combine_*_r"$ranks"_*__*.h)
    d=${dispatch%.h} c=${combine%.h}
    echo "    X($ranks, $d, $(upper "$d"), $c, $(upper "$c")) \\"
done
echo
