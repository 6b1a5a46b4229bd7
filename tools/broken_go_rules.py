"""Rules of the Go reader, broken on purpose: name, rule, file in readers/go, text, its replacement.

``tests/services/redis/reader/test_go_mutants.py`` builds each, and sees the vectors or a check of the
conformance program notice it.
"""

RULES = [
    (
        "no-second-try",
        "a version that was retired while it was read is read again at a newer one",
        "space.go",
        "if !is[*SnapshotExpiredError](err) || try == triesMax {",
        "if true {",
    ),
    (
        "any-server",
        "rows of a server that the pointer does not list are refused",
        "redis_calls.go",
        "\tif !isListed() {\n\t\treturn notVerified(",
        "\tif false {\n\t\treturn notVerified(",
    ),
    (
        "replaced-server",
        "a server is asked by its id only while the pointer of the version lists it",
        "redis_calls.go",
        "\tif !n.lists(call, id) {\n",
        "\tif false {\n",
    ),
    (
        "any-successor",
        "a successor with another namespace of the name is refused, by each call",
        "gate.go",
        "next.space.of.UUID != before.of.UUID {",
        "false {",
    ),
    (
        "no-floor",
        "a version below the floor is refused: its rows are merged with newer ones",
        "redis_calls.go",
        'oldest that can be read is %s", n.where, detail), false',
        'oldest that can be read is %s", n.where, detail), true',
    ),
    (
        "first-page-alone",
        "a scan follows its cursor to the end, the base included",
        "redis.go",
        'each.isDone = each.cursor == "0"',
        "each.isDone = true",
    ),
    (
        "expiry-by-the-clock",
        "a row has expired by the version's time, not by the reader's clock",
        "value.go",
        "> decidedAtUs",
        "> time.Now().UnixMicro()",
    ),
    (
        "no-stride",
        "keys of a table with fewer key groups are in multiples of its stride",
        "key.go",
        "return group - group%stride",
        "return group",
    ),
    (
        "no-start",
        "rows from before a table was emptied do not count",
        "space.go",
        "at.Start, of.DecidedAtUs",
        "0, of.DecidedAtUs",
    ),
    (
        "delete-markers-are-values",
        "a delete marker is an absent row",
        "value.go",
        'too many", len(rest))\n\t\t}\n\t\treturn nil, nil',
        'too many", len(rest))\n\t\t}\n\t\treturn rest, nil',
    ),
    (
        "numbers-as-doubles",
        "whole numbers and decimals are exact",
        "value.go",
        '\t\treturn strconv.ParseInt(text, 10, t.bits)\n\tcase "float"',
        '\t\tnumber, err := strconv.ParseFloat(text, 64)\n\t\treturn int64(number), err\n\tcase "float"',
    ),
    (
        "lone-surrogates",
        "escapes of surrogates come in pairs, in ignored fields, too",
        "value.go",
        "&& hasLoneSurrogate(content)",
        "&& false",
    ),
    (
        "map-key-as-go-reads-it",
        "a whole key of a map is spelled as JSON prints it",
        "value.go",
        "isWhole := err == nil && isNumber(text)",
        "isWhole := err == nil",
    ),
    (
        "base64-with-line-ends",
        "base64 is on one line",
        "value.go",
        'if !strings.ContainsAny(text, "\\r\\n") {',
        "if true {",
    ),
    (
        "time-of-any-form",
        "a time has the form that is written",
        "value.go",
        "if fits && err == nil && isInstant",
        "if (fits || err == nil) && err == nil && isInstant",
    ),
    (
        "keys-of-any-text",
        "no key column is a char, a varchar or an interval",
        "key.go",
        'utf8.ValidString(text) && t.name == "string" {',
        "utf8.ValidString(text) {",
    ),
    (
        "half-a-pointer",
        "a pointer that lacks a field is damaged",
        "redis.go",
        "if call.reply.([]any)[at] == nil {",
        "if false {",
    ),
    (
        "above-visible",
        "a version above the visible one is refused: it may be half applied",
        "space.go",
        "if version > found.visible {",
        "if false {",
    ),
]
