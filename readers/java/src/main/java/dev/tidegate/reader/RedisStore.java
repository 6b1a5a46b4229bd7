package dev.tidegate.reader;

import dev.tidegate.reader.RedisServers.Call;
import dev.tidegate.reader.TidegateException.ConfigError;
import dev.tidegate.reader.TidegateException.CorruptError;
import dev.tidegate.reader.TidegateException.SnapshotExpiredError;
import dev.tidegate.reader.TidegateException.StoreLostError;
import dev.tidegate.reader.TidegateException.StoreNotVerifiedError;
import dev.tidegate.reader.TidegateException.StoreUnavailableError;
import dev.tidegate.reader.TidegateException.VersionRegressedError;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import redis.clients.jedis.exceptions.JedisDataException;

/** Namespaces in Redis, read by the functions that their writer has loaded. */
final class RedisStore implements Store {
  private static final Set<Integer> FORMATS = Set.of(2);
  private static final int GROUPS_AT_ONCE = 64;
  private static final int LONG_GROUPS_AT_ONCE = 8;
  private static final int FIRST_ROWS = 100;
  private static final int FIRST_BYTES = 64 * 1024;
  private static final int PAGE_ROWS = 1_000;
  private static final int PAGE_BYTES = 1024 * 1024;
  private static final int SCAN_TRIES = 20;
  private static final int BLOCK_MS = 1_000;
  private static final Pattern WHOLE = Pattern.compile("\\d{1,18}");

  private final String where;
  private final RedisServers servers;
  /** Connections of calls that wait for a version, a second each: reads do not wait for them. */
  private final RedisServers waits;

  RedisStore(StoreUrl url, Options options) {
    where = "store " + url.shown();
    servers = new RedisServers(url, options, options.connections);
    waits = new RedisServers(url, options, Integer.MAX_VALUE);
  }

  @Override
  public String where() {
    return where;
  }

  @Override
  public void close() {
    servers.close();
    waits.close();
  }

  /** Send a command of Redis itself. */
  private Object plain(String key, Deadline deadline, String... words) {
    return plain(servers, key, deadline, words);
  }

  private Object plain(RedisServers to, String key, Deadline deadline, String... words) {
    List<byte[]> command = Arrays.stream(words).map(Store::utf8).toList();
    Object answer = to.run(List.of(new Call(
        Store.utf8(key), false, reply -> RedisForms.fits(words[0], words.length - 2, reply), node -> command)), deadline).get(0);
    if (answer instanceof JedisDataException error) {
      throw ofRedis(error);
    }
    return answer;
  }

  @Override
  public Target alias(String name, Deadline deadline) {
    String key = "tg:{" + name + "}:alias";
    List<?> fields = (List<?>) plain(key, deadline, "HMGET", key, "namespace", "uuid", "revision");
    if (fields.get(0) == null && fields.get(1) == null) {
      return null;
    }
    if (fields.get(0) == null || fields.get(1) == null) {
      throw new CorruptError(where + ": the alias " + name + " has no namespace or no uuid: set it again");
    }
    return new Target(RedisServers.text(fields.get(0)), RedisServers.text(fields.get(1)));
  }

  @Override
  public Space space(String namespace, Deadline deadline) {
    String key = "tg:{" + namespace + "}:meta";
    List<?> fields = (List<?>) plain(key, deadline, "HMGET", key, "identity", "ready", "library");
    if (fields.get(0) == null || fields.get(1) == null) {
      return null;
    }
    String place = where + ", namespace " + namespace;
    Identity identity = Identity.of(place, (byte[]) fields.get(0), FORMATS);
    if (fields.get(2) == null) {
      throw new StoreNotVerifiedError(place + " has no functions yet: its writer loads them when it starts");
    }
    return new RedisSpace(identity, place, RedisServers.text(fields.get(2)));
  }

  /** The error for an error of Redis that is no refusal of a function. */
  private TidegateException ofRedis(JedisDataException error) {
    String message = String.valueOf(error.getMessage());
    if (message.matches("(?s)(OOM|MISCONF|NOREPLICAS)\\b.*")) {
      return new StoreUnavailableError(where + " refused to write: " + message, error, true);
    }
    if (message.matches("(?s)(NOPERM|NOAUTH|WRONGPASS|DENIED)\\b.*|.*(user executing the script|invalid (username-)?password|no password is set"
        + "|without any password configured).*")) {
      return new ConfigError(where + " refuses this user: " + message, error, true);
    }
    if (message.matches("(?s)WRONGTYPE.*|.*(attempt to |bad argument|not an integer).*")) {
      return new CorruptError(where + " cannot use a value: " + message + "; if somebody changed it, restore the store from a copy");
    }
    return new ConfigError(where + " answered: " + message, error, false);
  }

  /** A version, and the servers that were listed when it was visible: they have all of it. */
  private record Known(long visible, Set<String> servers) {}

  /** A refusal of a function: its first word and the rest. */
  private record Refusal(String code, String detail) {}

  private final class RedisSpace implements Space {
    private final Identity identity;
    private final String place;
    private volatile String library;
    private volatile Known known = new Known(-1, Set.of());

    RedisSpace(Identity identity, String place, String library) {
      this.identity = identity;
      this.place = place;
      this.library = library;
    }

    @Override
    public Identity identity() {
      return identity;
    }

    private String meta() {
      return "tg:{" + identity.namespace() + "}:meta";
    }

    // -- calls of functions ----------------------------------------------------------------------

    /** A function's name and arguments. {@code server}: of a key group; "" for the one that has it. */
    private record Function(String name, String key, String server, List<byte[]> args) {}

    private Function ofMeta(String name, Object... args) {
      return new Function(name, meta(), null, bytes(args));
    }

    private Function ofGroup(String name, int group, String server, List<byte[]> args) {
      return new Function(name, "tg:{" + identity.namespace() + "/" + group + "}:h", server, args);
    }

    private static List<byte[]> bytes(Object... args) {
      List<byte[]> list = new ArrayList<>(args.length);
      for (Object arg : args) {
        list.add(arg instanceof byte[] raw ? raw : Store.utf8(arg.toString()));
      }
      return list;
    }

    private Call callOf(Function function, long version) {
      boolean writes = function.name.equals("lease") || function.name.equals("release");
      Predicate<Object> fits = reply -> RedisForms.fits(function.name, function.args.size() - 3, reply); // of a read: after the start
      return new Call(Store.utf8(function.key), writes, fits, node -> {
        List<byte[]> words = bytes(writes ? "FCALL" : "FCALL_RO", library + "_" + function.name, "1", function.key, identity.uuid());
        if (function.server != null) {
          words.add(Store.utf8(function.server.isEmpty() ? idOf(node, version) : function.server));
        }
        words.addAll(function.args);
        return words;
      });
    }

    /** The id to send to a server: only one that is listed by the pointer of this version or of a later one. */
    private String idOf(RedisNode node, long version) {
      Known now = known;
      return version <= now.visible && now.servers.contains(node.id) ? node.id : "";
    }

    /** Whether a server has all of the version: the newest pointer read, or else the present one, lists it. */
    private boolean accepts(String id, long version, Deadline deadline) {
      if (version > known.visible || !known.servers.contains(id)) {
        pointer(0, deadline);
      }
      return version <= known.visible && known.servers.contains(id);
    }

    /** Return the replies of functions that read, a Refusal for what a function refused. */
    private List<Object> run(List<Function> functions, long version, Deadline deadline) {
      Object[] replies = new Object[functions.size()];
      List<Integer> open = new ArrayList<>();
      for (int at = 0; at < replies.length; at++) {
        open.add(at);
      }
      while (!open.isEmpty()) {
        List<Object> answers = servers.run(open.stream().map(at -> callOf(functions.get(at), version)).toList(), deadline);
        List<Integer> again = new ArrayList<>();
        for (int at = 0; at < answers.size(); at++) {
          int of = open.get(at);
          replies[of] = answers.get(at);
          if (answers.get(at) instanceof JedisDataException error) {
            Refusal refused = refusalOf(error);
            replies[of] = refused;
            if (refused.code.equals("TGSERVER") && "".equals(functions.get(of).server)) {
              again.add(of);
            } else if (refused.code.equals("TGFUNCTION")) {
              findLibrary(deadline);
              again.add(of);
            }
          } else if (functions.get(of).name.equals("pointer")) {
            note((List<?>) answers.get(at));
          }
        }
        for (int of : List.copyOf(again)) {
          Refusal refused = (Refusal) replies[of];
          if (refused.code.equals("TGSERVER") && !accepts(refused.detail.split(" ")[0], version, deadline)) {
            replies[of] = version > known.visible
                ? new Refusal("TGBACK", String.valueOf(known.visible))
                : new Refusal("TGSERVER", "");
            again.remove((Integer) of);
          }
        }
        if (!again.isEmpty() && deadline.isOver()) {
          throw new StoreUnavailableError(place + ": its servers changed all the time; read again", null, false);
        }
        open = again;
      }
      return Arrays.asList(replies);
    }

    private Refusal refusalOf(JedisDataException error) {
      String message = String.valueOf(error.getMessage());
      if (message.startsWith("TG")) {
        String[] parts = message.split(" script: ")[0].split(" ", 2);
        return new Refusal(parts[0], parts.length == 1 ? "" : parts[1].substring(0, Math.min(parts[1].length(), 500)));
      }
      if (message.contains("Function not found")) {
        return new Refusal("TGFUNCTION", "");
      }
      throw ofRedis(error);
    }

    /** Read the library's name again: the writer may have been upgraded, or loads it at a new server in a moment. */
    private void findLibrary(Deadline deadline) {
      Object name = plain(meta(), deadline, "HGET", meta(), "library");
      if (deadline.leftMillis() < BLOCK_MS / 20) {
        throw new ConfigError(place + ": a server does not have the functions " + library + ": its writer loads them");
      }
      if (name instanceof byte[] found && !RedisServers.text(found).equals(library)) {
        library = RedisServers.text(found);
      } else {
        deadline.pause(BLOCK_MS / 20);
      }
    }

    /** The error for a refusal. A lost key group may be one of a namespace that was dropped: then the pointer says so. */
    private TidegateException errorOf(Refusal refused, Deadline deadline) {
      String detail = refused.detail;
      switch (refused.code) {
        case "TGNONE":
          return new StoreLostError(place + ": the namespace is not there any more: it was dropped, or the store lost it:"
              + " then `tidegate recover` rebuilds it from the log");
        case "TGOTHER":
          return ConfigError.proven(place + ": the namespace was dropped while it was open here; connect again");
        case "TGEXPIRED":
          return new SnapshotExpiredError(place + ": that version was retired, the oldest that can be read is " + detail);
        case "TGAHEAD", "TGBACK":
          return new VersionRegressedError(place + ": a version was asked for that is above the visible one, " + detail);
        case "TGLEASES":
          return Store.tooManyLeases(place, detail);
        case "TGSERVER":
          return new StoreNotVerifiedError(place + ": a server restarted or was promoted, and was not compared with the log yet:"
              + " a running query compares it within seconds, `tidegate repair` at once; then read again");
        case "TGLOST":
          pointer(0, deadline);
          return new StoreNotVerifiedError(place + ": " + detail + " was not compared with the log: its server lost it, or it came"
              + " from another server; a running query compares it within seconds, `tidegate repair` at once; then read again");
        default:
          return new CorruptError(place + ": " + refused.code + " " + detail);
      }
    }

    private Object one(Function function, Deadline deadline) {
      Object reply = run(List.of(function), 0, deadline).get(0);
      if (reply instanceof Refusal refused) {
        throw errorOf(refused, deadline);
      }
      return reply;
    }

    // -- the pointer -----------------------------------------------------------------------------

    @Override
    public Pointer pointer(long knownVersion, Deadline deadline) {
      return pointerIn((List<?>) one(ofMeta("pointer", knownVersion), deadline));
    }

    private void note(List<?> fields) {
      for (int field : new int[] {1, 3, 6}) {
        if (fields.get(field) == null) {
          throw new CorruptError(this.place + ": the pointer lacks field " + (field + 1) + ": restore the store from a copy");
        }
      }
      Set<String> listed = new HashSet<>(Arrays.asList(RedisServers.text(fields.get(6)).split(",")));
      listed.remove("");
      known = new Known(number(fields.get(0)), listed);
    }

    private Pointer pointerIn(List<?> fields) {
      long visible = number(fields.get(0));
      long horizon = number(fields.get(4));
      boolean filling = RedisServers.text(fields.get(6)).isEmpty() || (visible == 0 && horizon > 0);
      Entry latest = null;
      if (fields.size() > 8 && fields.get(8) != null) {
        latest = entryIn((byte[]) fields.get(8));
        latest = latest.version() == visible ? latest : null;
      }
      return new Pointer(visible, RedisServers.text(fields.get(1)), RedisServers.text(fields.get(3)), horizon, filling, latest);
    }

    private long number(Object field) {
      String text = field instanceof byte[] ? RedisServers.text(field) : String.valueOf(field);
      if (!WHOLE.matcher(text).matches()) {
        throw new CorruptError(place + ": the pointer has " + text + " for a number: restore the store from a copy");
      }
      return Long.parseLong(text);
    }

    /** The entry in {@code <published> <entry>}. */
    private Entry entryIn(byte[] content) {
      int space = 0;
      while (space < content.length && content[space] != ' ') {
        space++;
      }
      return Entry.of(place, Arrays.copyOfRange(content, Math.min(space + 1, content.length), content.length));
    }

    @Override
    public Entry entry(long version, Deadline deadline) {
      List<?> entries = (List<?>) one(ofMeta("catalog", version, version), deadline);
      return entries.isEmpty() ? null : entryIn((byte[]) entries.get(0));
    }

    @Override
    public Map<String, byte[]> schemas(Collection<String> ids, Deadline deadline) {
      List<?> pairs = (List<?>) one(ofMeta("schemas", ids.toArray()), deadline);
      Map<String, byte[]> schemas = new LinkedHashMap<>();
      for (int at = 0; at + 1 < pairs.size(); at += 2) {
        schemas.put(RedisServers.text(pairs.get(at)), (byte[]) pairs.get(at + 1));
      }
      return schemas;
    }

    // -- rows ------------------------------------------------------------------------------------

    @Override
    public Answer read(long version, List<Lookup> lookups, boolean withPointer, Deadline deadline) {
      List<Function> functions = new ArrayList<>();
      if (withPointer) {
        functions.add(ofMeta("pointer", version));
      }
      for (Lookup lookup : lookups) {
        List<byte[]> args = bytes(lookup.table(), version, lookup.at().start());
        args.addAll(lookup.keys());
        functions.add(ofGroup("read", lookup.group(), "", args));
      }
      List<Object> replies = run(functions, version, deadline);
      if (withPointer && replies.get(0) instanceof Refusal refused) {
        throw errorOf(refused, deadline);
      }
      Pointer pointer = withPointer ? pointerIn((List<?>) replies.get(0)) : null;
      List<Object> rows = replies.subList(withPointer ? 1 : 0, replies.size());
      byte[][] values = new byte[Lookup.keys(lookups)][];
      for (int at = 0; at < lookups.size(); at++) {
        if (rows.get(at) instanceof Refusal refused) {
          return new Answer(pointer, null, errorOf(refused, deadline));
        }
        List<?> stored = (List<?>) rows.get(at);
        for (int key = 0; key < stored.size(); key++) {
          values[lookups.get(at).places().get(key)] = (byte[]) stored.get(key);
        }
      }
      return new Answer(pointer, Arrays.asList(values), null);
    }

    @Override
    public Pages scan(long version, String table, TableAt at) {
      return new Scan(version, table, at);
    }

    /** The scan of one key group. It begins again if another server has it: a cursor means nothing there. */
    private static final class GroupScan {
      final int group;
      final Set<ByteBuffer> seen = new HashSet<>();
      String server = "";
      byte[] cursor = {'0'};
      int tries;

      GroupScan(int group) {
        this.group = group;
      }
    }

    private final class Scan implements Pages {
      private final long version;
      private final String table;
      private final TableAt at;
      private final List<GroupScan> open = new ArrayList<>();
      private int nextGroup;

      Scan(long version, String table, TableAt at) {
        this.version = version;
        this.table = table;
        this.at = at;
      }

      @Override
      public List<byte[][]> next(Deadline deadline) {
        boolean first = open.isEmpty();
        while (first && open.size() < GROUPS_AT_ONCE && nextGroup < identity.keyGroups()) {
          open.add(new GroupScan(nextGroup));
          nextGroup += at.stride();
        }
        if (open.isEmpty()) {
          return null;
        }
        List<GroupScan> some = List.copyOf(first ? open : open.subList(0, Math.min(LONG_GROUPS_AT_ONCE, open.size())));
        List<Function> functions = some.stream().map(group -> ofGroup("scan", group.group, group.server, bytes(
            table, version, at.start(), group.cursor, first ? FIRST_ROWS : PAGE_ROWS, first ? FIRST_BYTES : PAGE_BYTES))).toList();
        List<Object> replies = run(functions, version, deadline);
        List<byte[][]> page = new ArrayList<>();
        for (int of = 0; of < some.size(); of++) {
          take(some.get(of), replies.get(of), page, deadline);
        }
        return page;
      }

      /** Take a reply. The newest layer comes first and the base last, so the first value of a key counts. */
      private void take(GroupScan group, Object reply, List<byte[][]> page, Deadline deadline) {
        if (reply instanceof Refusal refused) {
          if (!refused.code.equals("TGSERVER") || group.server.isEmpty()) {
            throw errorOf(refused, deadline);
          }
          group.server = "";
          group.cursor = new byte[] {'0'};
          if (++group.tries == SCAN_TRIES) {
            throw new StoreUnavailableError(place + ": key group " + group.group + " changed its server " + SCAN_TRIES
                + " times while it was read; read again", null, false);
          }
          return;
        }
        List<?> parts = (List<?>) reply;
        group.server = RedisServers.text(parts.get(0));
        group.cursor = (byte[]) parts.get(1);
        List<?> rows = (List<?>) parts.get(3);
        for (int row = 0; row + 1 < rows.size(); row += 2) {
          if (group.seen.add(ByteBuffer.wrap((byte[]) rows.get(row)))) {
            page.add(new byte[][] {(byte[]) rows.get(row), (byte[]) rows.get(row + 1)});
          }
        }
        if (Arrays.equals(group.cursor, new byte[] {'0'})) {
          open.remove(group);
        }
      }
    }

    // -- leases and waiting ----------------------------------------------------------------------

    @Override
    public void lease(String id, long version, long millis, Deadline deadline) {
      one(ofMeta("lease", id, version, millis * 1_000), deadline);
    }

    @Override
    public void release(String id, Deadline deadline) {
      one(ofMeta("release", id), deadline);
    }

    @Override
    public void awaitNewer(long version, Deadline deadline) {
      String stream = "tg:{" + identity.namespace() + "}:versions";
      long millis = Math.max(1, Math.min(BLOCK_MS, deadline.leftMillis()));
      Deadline answered = Deadline.after(java.time.Duration.ofMillis(millis + BLOCK_MS));
      try {
        plain(waits, stream, answered, "XREAD", "COUNT", "1", "BLOCK", String.valueOf(millis), "STREAMS", stream, version + "-" + (1L << 32));
      } catch (StoreUnavailableError away) { // as at a failover: the pointer decides
        deadline.pause(BLOCK_MS / 20);
      }
    }
  }
}
