#!/bin/sh
# Print a Python that is new enough for this project; where there is none, say so in one sentence and fail.
#
#   sh tools/find_python.sh [PYTHON]     with an argument, only that one is tried
#
# Every candidate is really run: a name on PATH may be a shim with nothing behind it.

cd "$(dirname "$0")/.." || exit 1
minor_needed=$(sed -n 's/^requires-python = ">=3\.\([0-9]*\)".*/\1/p' pyproject.toml)
remedy="install a newer one, or name it: make PYTHON=/path/to/python3.$minor_needed ..."

[ $# -gt 0 ] || set -- .venv/bin/python python3 python3.13 python3.12 python3.11 python
found=""
for candidate in "$@"; do
    version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    case $version in
        3.*[!0-9]* | [!3]* | "") ;;
        *)
            if [ "${version#3.}" -ge "$minor_needed" ]; then
                echo "$candidate"
                exit 0
            fi
            ;;
    esac
    found="$found, $candidate ($version)"
done

if [ -n "$found" ]; then
    echo "Python 3.$minor_needed or newer is needed, but only ${found#, } was found: $remedy" >&2
else
    echo "Python 3.$minor_needed or newer is needed, but none of these runs: $*: $remedy" >&2
fi
exit 1
