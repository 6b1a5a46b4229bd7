package dev.tidegate.reader;

import com.fasterxml.jackson.databind.JsonNode;
import dev.tidegate.reader.Store.Answer;
import dev.tidegate.reader.Store.Entry;
import dev.tidegate.reader.Store.Lookup;
import dev.tidegate.reader.Store.Pointer;
import dev.tidegate.reader.Store.Space;
import dev.tidegate.reader.Store.TableAt;
import dev.tidegate.reader.TidegateException.ConfigError;
import dev.tidegate.reader.TidegateException.CorruptError;
import dev.tidegate.reader.TidegateException.SnapshotExpiredError;
import dev.tidegate.reader.TidegateException.StoreNotVerifiedError;
import dev.tidegate.reader.TidegateException.StoreRemovedError;
import dev.tidegate.reader.TidegateException.VersionRegressedError;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;

/** The rules of reads in one namespace, and what is remembered of it: the newest version seen, its entry, schemas. */
final class SpaceReader {
  /** A version that was seen, and the log's digest after it. */
  record Seen(long version, String digest) {}

  /** A table at a version. */
  record Table(TableAt at, Schema schema) {}

  private static final int TRIES = 5;
  private static final int KEYS_AT_ONCE = 100;
  private static final int SCHEMAS_MAX = 1_000;

  final Space space;
  final String where;
  private final Map<String, Schema> schemas = new ConcurrentHashMap<>();
  private volatile Seen seen = new Seen(0, "");
  private volatile Entry newest;

  SpaceReader(Space space, String where) {
    this.space = space;
    this.where = where + ", namespace " + space.identity().namespace();
  }

  Seen seen() {
    return seen;
  }

  /** Set what an earlier reader of this namespace has seen: versions never go back. */
  void remember(Seen earlier) {
    seen = earlier;
  }

  // -- the pointer -------------------------------------------------------------------------------

  /** Read the pointer. It is compared with what was seen before the request. */
  Pointer pointer(Deadline deadline) {
    Seen before = seen;
    Entry entry = newest;
    return noted(before, space.pointer(entry == null ? 0 : entry.version(), deadline));
  }

  private Pointer noted(Seen before, Pointer pointer) {
    if (pointer.writer().startsWith("{")) {
      throw removed(pointer);
    }
    if ((pointer.filling() || pointer.visible() == 0) && before.version > 0) {
      throw filling();
    }
    if (pointer.visible() < before.version) {
      throw new VersionRegressedError(where + " shows version " + pointer.visible() + ", this gate has already seen version "
          + before.version + ": the store lost versions; restart the writer or run `tidegate recover`");
    }
    if (pointer.visible() == before.version && !before.digest.isEmpty() && !pointer.digest().equals(before.digest)) {
      throw new VersionRegressedError(where + " shows version " + pointer.visible() + " with another digest than before: the store"
          + " holds another history now; find out what replaced it, then connect again");
    }
    synchronized (this) {
      if (pointer.visible() >= seen.version) {
        seen = new Seen(pointer.visible(), pointer.digest());
      }
      if (pointer.latest() != null && (newest == null || pointer.latest().version() >= newest.version())) {
        newest = checked(pointer.latest(), pointer);
      }
    }
    return pointer;
  }

  private Entry checked(Entry entry, Pointer pointer) {
    if (!entry.digest().equals(pointer.digest())) {
      throw new CorruptError(where + ": version " + pointer.visible() + " has one digest in the pointer and another one in the"
          + " catalog: restore the store from a copy");
    }
    return entry;
  }

  private StoreNotVerifiedError filling() {
    return new StoreNotVerifiedError(where + " is being rebuilt or filled: nothing can be read before its newest version is back;"
        + " read again later. If no writer runs, `tidegate recover` completes it");
  }

  private TidegateException removed(Pointer pointer) {
    JsonNode note = Schema.object(Store.utf8(pointer.writer()), where + ": the note of its removal");
    String successor = note.path("successor").asText("");
    if (!note.path("removed_after").isIntegralNumber() || successor.length() > 1_000 || successor.contains("@")) {
      return new CorruptError(where + ": the pointer names a removal of this store that cannot be read");
    }
    return new StoreRemovedError(where + " was removed from the namespace after version " + note.path("removed_after").asLong()
        + ": no later version becomes visible there" + (successor.isEmpty() ? "" : "; its successor is " + successor), successor);
  }

  /** The entry of the pointer's version. Throws ConfigError: there is no version yet. */
  Entry entryOf(Pointer pointer, Deadline deadline) {
    if (pointer.filling()) {
      throw filling();
    }
    if (pointer.visible() == 0) {
      throw new ConfigError(where + " has no version yet: its first batch makes it");
    }
    Entry entry = newest;
    if (entry == null || entry.version() != pointer.visible() || !entry.digest().equals(pointer.digest())) {
      entry = checked(entry(pointer.visible(), deadline), pointer);
      newest = entry;
    }
    return entry;
  }

  /** The entry of a visible version. Throws SnapshotExpiredError: it was retired by now. */
  Entry entry(long version, Deadline deadline) {
    for (int look = 0; look < 2; look++) {
      Entry entry = space.entry(version, deadline);
      if (entry != null && entry.version() == version) {
        return entry;
      }
      Pointer pointer = space.pointer(0, deadline);
      if (pointer.filling()) { // its entries are made again, too
        throw filling();
      }
      checkKept(version, pointer);
    }
    throw new CorruptError(where + ": version " + version + " is visible and has no entry in the catalog: `tidegate repair` puts it"
        + " back from the log");
  }

  void checkKept(long version, Pointer pointer) {
    checkKept(where, version, pointer);
  }

  /** Refuse a version that was visible, and was retired since. */
  static void checkKept(String where, long version, Pointer pointer) {
    if (pointer.horizon() > version) {
      throw new SnapshotExpiredError(where + ": version " + version + " was retired, the oldest that can be read is " + pointer.horizon());
    }
    if (pointer.visible() < version) {
      throw new VersionRegressedError(where + ": version " + version + " was visible, now it is " + pointer.visible());
    }
  }

  // -- tables ------------------------------------------------------------------------------------

  /** Some tables at a version. Throws ConfigError: one does not exist there; the message names those that do. */
  Map<String, Table> tables(Entry entry, Collection<String> names, Deadline deadline) {
    Map<String, Schema> found = new HashMap<>(); // other calls may empty the cache meanwhile
    Set<String> unknown = new LinkedHashSet<>();
    for (String name : names) {
      TableAt at = entry.tables().get(name);
      if (at == null) {
        throw new ConfigError(where + " has no table " + name + " at version " + entry.version() + ", it has " + entry.listed());
      }
      Schema schema = schemas.get(at.schemaId());
      if (schema == null) {
        unknown.add(at.schemaId());
      } else {
        found.put(at.schemaId(), schema);
      }
    }
    if (!unknown.isEmpty()) {
      if (schemas.size() > SCHEMAS_MAX) {
        schemas.clear();
      }
      space.schemas(unknown, deadline).forEach((id, json) -> found.put(id, Schema.of(json)));
      schemas.putAll(found);
    }
    Map<String, Table> tables = new LinkedHashMap<>();
    for (String name : names) {
      TableAt at = entry.tables().get(name);
      Schema schema = found.get(at.schemaId());
      if (schema == null) {
        checkKept(entry.version(), space.pointer(0, deadline));
        throw new CorruptError(where + ": version " + entry.version() + ", table " + name + ": the store has no schema " + at.schemaId());
      }
      tables.put(name, new Table(at, schema));
    }
    return tables;
  }

  // -- reads -------------------------------------------------------------------------------------

  /**
   * Read keys at the newest version. They are first read at the version seen last, with the pointer, in one round trip:
   * if it is still the newest, its rows count. Otherwise the reads are repeated at the newer one.
   */
  Rows newest(Map<String, ? extends List<? extends List<?>>> keys, Deadline deadline) {
    Seen before = seen;
    Entry known = newest;
    Pointer pointer = null;
    if (known != null && known.version() == before.version && known.digest().equals(before.digest)) {
      Map<String, Table> tables = null;
      List<Lookup> lookups = null;
      try {
        tables = tables(known, keys.keySet(), deadline);
        lookups = lookups(tables, keys);
      } catch (ConfigError | SnapshotExpiredError atThatVersion) {
        lookups = null; // a table may be new
      }
      Answer answer = lookups == null ? null : space.read(known.version(), lookups, true, deadline);
      if (answer != null && answer.pointer() != null) {
        pointer = noted(before, answer.pointer());
        boolean isNewest = pointer.visible() == known.version();
        if (isNewest && !(answer.refusal() instanceof SnapshotExpiredError)) {
          return rows(known, tables, keys, answer);
        }
        pointer = isNewest ? null : pointer;
      }
    }
    if (pointer != null) {
      try {
        return at(entryOf(pointer, deadline), keys, deadline);
      } catch (SnapshotExpiredError meanwhile) {
        // its pointer names a newer one
      }
    }
    return again(() -> at(entryOf(pointer(deadline), deadline), keys, deadline));
  }

  /** Read at the newest version, and again at a newer one if that was retired meanwhile. */
  static <T> T again(Supplier<T> read) {
    for (int tries = 1; ; tries++) {
      try {
        return read.get();
      } catch (SnapshotExpiredError retired) {
        if (tries == TRIES) {
          throw retired;
        }
      }
    }
  }

  /** Read keys at a version. */
  Rows at(Entry entry, Map<String, ? extends List<? extends List<?>>> keys, Deadline deadline) {
    Map<String, Table> tables = tables(entry, keys.keySet(), deadline);
    return rows(entry, tables, keys, space.read(entry.version(), lookups(tables, keys), false, deadline));
  }

  private List<Lookup> lookups(Map<String, Table> tables, Map<String, ? extends List<? extends List<?>>> keys) {
    List<Lookup> all = new ArrayList<>();
    int place = 0;
    for (Map.Entry<String, ? extends List<? extends List<?>>> of : keys.entrySet()) {
      Table table = tables.get(of.getKey());
      Map<Integer, Lookup> open = new HashMap<>();
      for (List<?> key : of.getValue()) {
        byte[] encoded = Keys.encode(key, table.schema.keyTypes);
        int group = Keys.group(encoded, space.identity().keyGroups(), table.at.stride());
        Lookup lookup = open.get(group);
        if (lookup == null || lookup.keys().size() == KEYS_AT_ONCE) {
          lookup = new Lookup(of.getKey(), table.at, group, new ArrayList<>(), new ArrayList<>());
          open.put(group, lookup);
          all.add(lookup);
        }
        lookup.keys().add(encoded);
        lookup.places().add(place++);
      }
    }
    return all;
  }

  private Rows rows(Entry entry, Map<String, Table> tables, Map<String, ? extends List<? extends List<?>>> keys, Answer answer) {
    if (answer.refusal() != null) {
      throw answer.refusal();
    }
    Map<String, List<Row>> rows = new LinkedHashMap<>();
    int next = 0;
    for (Map.Entry<String, ? extends List<? extends List<?>>> of : keys.entrySet()) {
      List<Row> found = new ArrayList<>();
      for (List<?> key : of.getValue()) {
        found.add(row(tables.get(of.getKey()), of.getKey(), key, answer.values().get(next++), entry));
      }
      rows.put(of.getKey(), found);
    }
    return new Rows(entry.version(), rows);
  }

  Row row(Table table, String name, Object key, byte[] stored, Entry entry) {
    try {
      return table.schema.row(stored, entry.decidedAtUs());
    } catch (CorruptError unfit) {
      throw new CorruptError(where + ", table " + name + ", key " + key + ": " + unfit.getMessage(), unfit);
    }
  }

  // -- snapshots ---------------------------------------------------------------------------------

  /** Take a lease on a version, null: the newest, and return its entry; of version 0 an entry without tables. */
  Entry pin(Long version, Lease lease, Deadline deadline) {
    return version == null ? again(() -> pinOnce(null, lease, deadline)) : pinOnce(version, lease, deadline);
  }

  private Entry pinOnce(Long version, Lease lease, Deadline deadline) {
    Pointer pointer = pointer(deadline);
    if (pointer.filling()) {
      throw filling();
    }
    long wanted = version == null ? pointer.visible() : version;
    if (wanted > pointer.visible()) {
      throw new ConfigError("version " + wanted + " of " + where + " is not visible yet, the visible version is "
          + pointer.visible() + ": waitFor waits for it");
    }
    checkKept(wanted, pointer);
    lease.take(space, wanted, deadline);
    Pointer now = pointer(deadline); // a store without one step for both reads leases after it announced the horizon
    checkKept(wanted, now);
    if (wanted == 0) {
      return new Entry(0, "", 0, Map.of());
    }
    return now.visible() == wanted ? entryOf(now, deadline) : entry(wanted, deadline);
  }
}
