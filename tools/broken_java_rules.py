"""Rules of the Java reader, broken on purpose: name, rule, file, text, its replacement, and tests.

``tests/services/redis/reader/test_java_mutants.py`` compiles each, and sees these tests of
``test_java_reader.py`` fail. The file is one of ``readers/java``; the tests are an expression for ``-k``.
"""

RULES = [
    (
        "no-second-look",
        "a version that was retired while it was read is read again at the pointer's",
        "SpaceReader.java",
        "if (isNewest && !(answer.refusal() instanceof SnapshotExpiredError)) {",
        "if (isNewest) {",
        "refusals and TGEXPIRED",
    ),
    (
        "no-second-try",
        "a scan leaves a version that was retired before its first row for a newer one",
        "SpaceReader.java",
        "if (tries == TRIES) {",
        "if (true) {",
        "before_its_first_row",
    ),
    (
        "any-server",
        "a server's id is sent only if the pointer lists it",
        "RedisStore.java",
        'return version <= now.visible && now.servers.contains(node.id) ? node.id : "";',
        "return node.id;",
        "tampered_pointers",
    ),
    (
        "no-floor",
        "a version below the floor is refused: its rows are merged with newer ones",
        "RedisStore.java",
        "          return new Answer(pointer, null, errorOf(refused, deadline));\n",
        '          if (!refused.code.equals("TGEXPIRED")) {\n'
        "            return new Answer(pointer, null, errorOf(refused, deadline));\n          }\n"
        "          continue;\n",
        "tampered_headers and floor",
    ),
    (
        "first-page-alone",
        "a scan follows its cursor to the end, the base included",
        "RedisStore.java",
        "if (Arrays.equals(group.cursor, new byte[] {'0'})) {",
        "if (true) {",
        "merged_layers",
    ),
    (
        "expiry-by-the-clock",
        "a row has expired by the version's time, not by the reader's clock",
        "Stored.java",
        "expiryUs <= decidedAtUs",
        "expiryUs <= System.currentTimeMillis() * 1_000",
        "vectors_of_values or expired",
    ),
    (
        "no-stride",
        "keys of a table with fewer key groups are in multiples of its stride",
        "Keys.java",
        "return group - group % stride;",
        "return group;",
        "fewer_key_groups",
    ),
    (
        "no-start",
        "rows from before a table was emptied do not count",
        "RedisStore.java",
        "bytes(lookup.table(), version, lookup.at().start())",
        "bytes(lookup.table(), version, 0)",
        "emptied",
    ),
    (
        "delete-markers-are-values",
        "a delete marker is an absent row",
        "Stored.java",
        "boolean absent = deleted || (expires",
        "boolean absent = (expires",
        "vectors_of_values",
    ),
    (
        "numbers-as-doubles",
        "a decimal has all its digits",
        "Type.java",
        "return exact(new BigDecimal(in.getText()));",
        "return exact(BigDecimal.valueOf(in.getDoubleValue()));",
        "vectors_of_values",
    ),
    (
        "above-the-visible-version",
        "a version above the visible one may be half applied, and is refused",
        "SpaceReader.java",
        "if (wanted > pointer.visible()) {",
        "if (false) {",
        "retired",
    ),
    (
        "back-to-an-older-version",
        "I9: a gate never goes back",
        "SpaceReader.java",
        "if (pointer.visible() < before.version) {",
        "if (false) {",
        "never_go_back",
    ),
    (
        "a-lease-without-end",
        "I8: a snapshot whose lease has run out answers nothing any more",
        "Lease.java",
        "if (ended == null && System.nanoTime() - endNanos >= 0) {",
        "if (false) {",
        "runs_out",
    ),
]
