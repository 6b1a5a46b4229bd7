package dev.tidegate.reader;

import com.fasterxml.jackson.databind.JsonNode;
import dev.tidegate.reader.TidegateException.ConfigError;
import dev.tidegate.reader.TidegateException.CorruptError;
import dev.tidegate.reader.TidegateException.StoreUnavailableError;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The calls of a reader to a store. Thread-safe. Every call ends by its deadline. */
interface Store extends AutoCloseable {
  /** The namespace that an alias names. */
  record Target(String namespace, String uuid) {
    static Target of(byte[] json) {
      JsonNode named = Schema.object(json, "an alias");
      return new Target(named.path("namespace").asText(), named.path("uuid").asText());
    }
  }

  record Identity(String namespace, String uuid, int keyGroups) {
    /** Throws ConfigError: it has a format that this release does not know. */
    static Identity of(String where, byte[] json, Collection<Integer> formats) {
      JsonNode identity = Schema.object(json, where + ": the identity");
      int format = identity.path("format").asInt(-1);
      if (!formats.contains(format)) {
        throw new ConfigError(where + " has format " + format + ", this release knows " + formats
            + ": use the release that wrote it");
      }
      int keyGroups = identity.path("key_groups").asInt();
      if (keyGroups < 1 || keyGroups > 32_768) {
        throw new CorruptError(where + ": the identity has " + keyGroups + " key groups");
      }
      return new Identity(identity.path("name").asText(), identity.path("uuid").asText(), keyGroups);
    }
  }

  /** {@code latest}: the entry of the visible version, if the store sent it. {@code filling}: nothing is readable yet. */
  record Pointer(long visible, String digest, String writer, long horizon, boolean filling, Entry latest) {}

  record TableAt(String schemaId, long start, int stride) {}

  /** A version of the catalog. */
  record Entry(long version, String digest, long decidedAtUs, Map<String, TableAt> tables) {
    /** The names of the tables that readers are shown, in order: the rows of the others say nothing to them. */
    List<String> listed() {
      return tables.keySet().stream().filter(name -> !name.startsWith("_due.") && !name.startsWith("_due_at.")).sorted().toList();
    }

    static Entry of(String where, byte[] json) {
      JsonNode entry = Schema.object(json, where + ": an entry of the catalog");
      Map<String, TableAt> tables = new LinkedHashMap<>();
      entry.path("tables").properties().forEach(table -> {
        JsonNode at = table.getValue();
        int stride = at.path("stride").asInt(1);
        tables.put(table.getKey(), new TableAt(at.path("schema_id").asText(), at.path("start").asLong(), stride));
        if (stride < 1) {
          throw new CorruptError(where + ": table " + table.getKey() + " has a stride of " + stride);
        }
      });
      if (!entry.path("version").isIntegralNumber() || !entry.path("decided_at_us").isIntegralNumber()) {
        throw new CorruptError(where + ": an entry of the catalog has no version or time: " + Stored.shown(json));
      }
      return new Entry(
          entry.path("version").asLong(), entry.path("digest").asText(), entry.path("decided_at_us").asLong(), tables);
    }
  }

  /** Some keys of one key group of a table; {@code places}: those of their values in the answer. */
  record Lookup(String table, TableAt at, int group, List<byte[]> keys, List<Integer> places) {
    /** The number of keys of all lookups together. */
    static int keys(List<Lookup> lookups) {
      return lookups.stream().mapToInt(lookup -> lookup.keys.size()).sum();
    }
  }

  /**
   * Stored values at the places of their keys, null for none; or why there are none. {@code pointer}:
   * read in the same round trip, null if it was not.
   */
  record Answer(Pointer pointer, List<byte[]> values, TidegateException refusal) {}

  /** The pages of a scan: a key and its stored value each, no key twice. */
  interface Pages {
    /** The next page, null at the end. */
    List<byte[][]> next(Deadline deadline);
  }

  /** One namespace of the store. */
  interface Space {
    Identity identity();

    /** Read the pointer. {@code known}: the version whose entry the caller has, or 0. */
    Pointer pointer(long known, Deadline deadline);

    /** The entry of a version, null if the catalog does not have it. */
    Entry entry(long version, Deadline deadline);

    /** The JSON of these schemas, by id. */
    Map<String, byte[]> schemas(Collection<String> ids, Deadline deadline);

    /** Read rows of a version, which is refused if it was retired or is above the visible one. */
    Answer read(long version, List<Lookup> lookups, boolean withPointer, Deadline deadline);

    Pages scan(long version, String table, TableAt at);

    /** Take or renew a lease. Throws SnapshotExpiredError: the version was retired. */
    void lease(String id, long version, long millis, Deadline deadline);

    void release(String id, Deadline deadline);

    /** Wait until a version newer than this one may be visible, a second at most. */
    void awaitNewer(long version, Deadline deadline);
  }

  String where();

  /** The alias's target, null if there is none. */
  Target alias(String name, Deadline deadline);

  /** A namespace, null if there is none of that name. */
  Space space(String namespace, Deadline deadline);

  @Override
  void close();

  static Store open(StoreUrl url, Options options, Deadline deadline) {
    return switch (url.scheme()) {
      case "redis", "rediss", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel" -> new RedisStore(url, options);
      case "cassandra" -> CassandraStore.open(url, options, deadline);
      default -> throw new ConfigError(
          "the store's URL begins with " + url.scheme() + ": this reader knows redis, redis+cluster, redis+sentinel (rediss"
              + " with TLS) and cassandra");
    };
  }

  static StoreUnavailableError tooManyLeases(String where, Object most) {
    return new StoreUnavailableError(where + ": " + most + " leases pin versions, the most that the store allows: close snapshots"
        + " that are not read any more, or share one among threads", null, true);
  }

  static byte[] utf8(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }
}
