package dev.tidegate.reader;

import dev.tidegate.reader.RedisNode.Pipe;
import dev.tidegate.reader.TidegateException.ConfigError;
import dev.tidegate.reader.TidegateException.StoreUnavailableError;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Function;
import java.util.function.IntFunction;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import javax.net.ssl.SSLContext;
import redis.clients.jedis.ClientSetInfoConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.util.JedisClusterCRC16;

/**
 * The primaries of a URL: one server, the one that Sentinels name, or those of a Cluster. {@link #run} sends each of them
 * all of its calls in one pipeline, and again what is answered by a move, a restart or a failover, until the deadline.
 */
final class RedisServers implements AutoCloseable {
  /**
   * A command for the primary that has the key; {@code words} makes it for that server. {@code writes}: it can do without.
   * {@code fits}: whether a reply has the form of those to it.
   */
  record Call(byte[] key, boolean writes, Predicate<Object> fits, Function<RedisNode, List<byte[]>> words) {}

  /** {@code slots}: by slot, in a Cluster; else one. */
  private record Servers(Map<HostAndPort, RedisNode> nodes, RedisNode[] slots) {}

  private static final int REQUEST_MS = 3_000;
  private static final int SLOTS = 16_384;
  private static final int PAUSE_MS = 10;
  private static final int PAUSE_MAX_MS = 200;
  /** The reply of a server that another one has replaced: its connections are closed, and its name is looked up again. */
  private static final Pattern ELSEWHERE = Pattern.compile("^(READONLY|MASTERDOWN|UNBLOCKED|TGSERVER replica)\\b.*", Pattern.DOTALL);
  /** The replies that no repetition mends, or that the caller handles. Any other one proves nothing, and passes. */
  private static final Pattern FINAL = Pattern.compile(
      "^(TG|OOM|MISCONF|NOAUTH|WRONGPASS|NOPERM|DENIED|WRONGTYPE|CROSSSLOT|NOPROTO|NOSCRIPT).*|.*(user executing the script|unauthenticated|invalid password"
          + "|invalid username-password|no password is set|without any password configured|wrong number of arguments|unknown command"
          + "|unknown subcommand|syntax error|rotocol error|DB index|compiling|support disabled|not allowed in cluster mode|attempt to "
          + "|bad argument|not an integer|unction not found).*", Pattern.DOTALL);
  static final String UNNAMED = "set cluster-announce-hostname on each server, or cluster-preferred-endpoint-type ip: the"
      + " Cluster gives \"?\" for a host name";

  private final StoreUrl url;
  private final Options options;
  private final int connections;
  private final IntFunction<JedisClientConfig> config;
  private final IntFunction<JedisClientConfig> sentinelConfig;
  private final boolean isCluster;
  private final boolean isSentinel;
  private final ReentrantLock refreshes = new ReentrantLock();
  private volatile Servers servers;
  private volatile boolean closed;

  /** {@code connections}: the most to each server. */
  RedisServers(StoreUrl url, Options options, int connections) {
    this.url = url;
    this.options = options;
    this.connections = connections;
    isCluster = url.scheme().endsWith("+cluster");
    isSentinel = url.scheme().endsWith("+sentinel");
    String[] path = url.path().isEmpty() ? new String[0] : url.path().split("/");
    int database = isSentinel ? 1 : 0;
    boolean fits = isCluster ? path.length == 0 : path.length <= database + 1 && (!isSentinel || path.length > 0);
    if (!fits || (path.length > database && !path[database].matches("\\d{1,9}"))) {
      throw new ConfigError("store " + url.shown() + ": the path is that of no such URL: redis://host:port/0,"
          + " redis+cluster://host:port or redis+sentinel://host:port/NAME-OF-THE-PRIMARY/0");
    }
    if (!isCluster && !isSentinel && url.hosts().size() > 1) {
      throw new ConfigError("store " + url.shown() + ": several servers are redis+cluster:// or redis+sentinel://");
    }
    boolean tls = url.scheme().startsWith("rediss");
    if (options.tls && !tls) {
      throw new ConfigError("store " + url.shown() + ": options of TLS need a URL that begins with rediss");
    }
    String user = options.username == null ? url.user() : options.username;
    String password = options.password == null ? url.password() : options.password;
    config = configOf(tls, user, password, path.length > database ? Integer.parseInt(path[database]) : 0);
    sentinelConfig = configOf(tls, options.sentinelUsername, options.sentinelPassword, 0);
  }

  /** The settings of a connection that is made within this number of milliseconds. */
  private IntFunction<JedisClientConfig> configOf(boolean tls, String user, String password, int database) {
    SSLContext context = tls ? StoreUrl.sslContext(options) : null;
    return millis -> {
      DefaultJedisClientConfig.Builder config = DefaultJedisClientConfig.builder()
          .timeoutMillis(millis)
          .user(user)
          .password(password == null || password.isEmpty() ? null : password)
          .database(database)
          .clientSetInfoConfig(ClientSetInfoConfig.DISABLED)
          .ssl(tls);
      if (tls) {
        var parameters = context.getDefaultSSLParameters();
        parameters.setEndpointIdentificationAlgorithm("HTTPS");
        config.sslSocketFactory(context.getSocketFactory()).sslParameters(parameters);
      }
      return config.build();
    };
  }

  /**
   * Send calls and return their replies in order; an error of Redis is a reply, too. Throws StoreUnavailableError: some
   * were not answered by the deadline. ConfigError: a server refuses this user.
   */
  List<Object> run(List<Call> calls, Deadline deadline) {
    Object[] replies = new Object[calls.size()];
    List<Integer> open = new ArrayList<>();
    for (int at = 0; at < replies.length; at++) {
      open.add(at);
    }
    for (int pause = PAUSE_MS; ; pause = Math.min(2 * pause, PAUSE_MAX_MS)) {
      Servers seen = servers;
      Exception why;
      try {
        seen = seen == null ? refresh(null, deadline) : seen;
        why = once(seen, calls, open, replies, deadline);
      } catch (JedisConnectionException unreached) {
        why = unreached;
      }
      if (open.isEmpty()) {
        return Arrays.asList(replies);
      }
      if (deadline.leftMillis() <= pause) {
        throw new StoreUnavailableError("store " + url.shown() + ": no answer within " + options.timeout + ": " + why, why, false);
      }
      deadline.pause(pause);
      try {
        refresh(seen, deadline);
      } catch (JedisConnectionException unreached) {
        // the next round names it
      }
    }
  }

  /** Whether the same call may succeed later, at this server or at another one. */
  static boolean passes(JedisDataException error) {
    String message = String.valueOf(error.getMessage());
    return ELSEWHERE.matcher(message).matches() || !FINAL.matcher(message).matches();
  }

  /** Whether a server has answered, and the same request is refused later, too. */
  private static boolean isRefusal(Exception error) {
    return error instanceof JedisDataException reply && !passes(reply);
  }

  /** Send the open calls once, to all servers before the first reply is read; return why some are still open. */
  private Exception once(Servers seen, List<Call> calls, List<Integer> open, Object[] replies, Deadline deadline) {
    Map<RedisNode, List<Integer>> byNode = new LinkedHashMap<>();
    for (int at : open) {
      byNode.computeIfAbsent(nodeOf(seen, calls.get(at).key), node -> new ArrayList<>()).add(at);
    }
    Map<RedisNode, Pipe> lent = new LinkedHashMap<>();
    try {
      Deadline silence = deadline.within(REQUEST_MS); // of all servers together
      Exception why = send(byNode, calls, lent, silence);
      for (RedisNode node : List.copyOf(lent.keySet())) {
        Exception unanswered = receive(node, byNode.get(node), calls, lent, replies, silence, deadline);
        why = why == null ? unanswered : why;
        silence = unanswered == null ? deadline.within(REQUEST_MS) : silence;
      }
      open.removeIf(at -> replies[at] != null);
      return why;
    } finally { // those whose replies were not read, because something else was thrown
      lent.forEach((node, connection) -> node.giveBack(connection, false));
    }
  }

  /** Send each server its share; {@code lent} gets the connections on which it was. Return why another one has not got it. */
  private Exception send(Map<RedisNode, List<Integer>> byNode, List<Call> calls, Map<RedisNode, Pipe> lent, Deadline deadline) {
    Exception why = null;
    for (Map.Entry<RedisNode, List<Integer>> share : byNode.entrySet()) {
      RedisNode node = share.getKey();
      try {
        Pipe connection = borrow(node, deadline);
        lent.put(node, connection);
        for (int at : share.getValue()) {
          List<byte[]> words = calls.get(at).words.apply(node);
          byte[] command = words.get(0);
          connection.sendCommand(() -> command, words.subList(1, words.size()).toArray(new byte[0][]));
        }
        connection.send();
      } catch (JedisConnectionException unreached) {
        why = why == null ? unreached : why;
        Pipe broken = lent.remove(node);
        if (broken != null) {
          node.giveBack(broken, false);
        }
      }
    }
    return why;
  }

  /** Read a server's replies to its share, the first one by {@code silence}; give back its connection. Return why one is missing. */
  private static Exception receive(
      RedisNode node, List<Integer> share, List<Call> calls, Map<RedisNode, Pipe> lent, Object[] replies, Deadline silence, Deadline deadline) {
    Deadline next = silence;
    Exception why = null;
    boolean whole = false;
    boolean isLeft = false;
    try {
      for (int at : share) {
        Object answer = replyOf(lent.get(node), next);
        next = deadline.within(REQUEST_MS);
        if (!calls.get(at).fits.test(answer)) {
          throw RedisForms.noReply();
        }
        if (answer instanceof JedisDataException error) {
          String message = String.valueOf(error.getMessage());
          if (passes(error) && !(calls.get(at).writes && message.startsWith("NOREPLICAS"))) {
            why = why == null ? error : why;
            isLeft |= ELSEWHERE.matcher(message).matches();
            continue;
          }
          if (message.startsWith("TGSERVER ")) {
            node.id = message.split(" ")[1];
          }
        }
        replies[at] = answer == null ? NIL : answer;
      }
      whole = true;
    } catch (JedisConnectionException broken) {
      why = why == null ? broken : why; // the words of a server say more
    } finally {
      if (isLeft) {
        node.leave();
      }
      node.giveBack(lent.remove(node), whole);
    }
    return why;
  }

  private static Object replyOf(Pipe connection, Deadline deadline) {
    try {
      return connection.reply(deadline);
    } catch (JedisDataException error) {
      return error;
    }
  }

  /** The reply "nil" to a whole call. */
  static final Object NIL = new Object();

  private Pipe borrow(RedisNode node, Deadline deadline) {
    try {
      return node.borrow(deadline);
    } catch (JedisConnectionException unreached) {
      throw unreached;
    } catch (JedisDataException refused) {
      if (passes(refused)) {
        throw new JedisConnectionException(refused.getMessage(), refused);
      }
      throw new ConfigError("store " + url.shown() + " refuses this user: " + refused.getMessage(), refused, false);
    } catch (JedisException failed) {
      throw new JedisConnectionException(failed.getMessage(), failed);
    }
  }

  private static RedisNode nodeOf(Servers seen, byte[] key) {
    RedisNode node = seen.slots.length == 1 ? seen.slots[0] : seen.slots[JedisClusterCRC16.getSlot(key)];
    if (node == null) {
      throw new JedisConnectionException("no server has the slot of " + new String(key, StandardCharsets.UTF_8));
    }
    return node;
  }

  // -- which servers -----------------------------------------------------------------------------

  /** Find the servers again, unless another thread did since {@code seen}: one at a time looks for them. */
  private Servers refresh(Servers seen, Deadline deadline) {
    if (!deadline.takes(refreshes::tryLock)) {
      throw new JedisConnectionException("there was no time left to find the servers");
    }
    try {
      if (closed) {
        throw ConfigError.proven("this gate to store " + url.shown() + " was closed: connect again");
      }
      if (servers != seen || (seen != null && !isCluster && !isSentinel)) {
        return servers;
      }
      Map<HostAndPort, RedisNode> nodes = new LinkedHashMap<>();
      RedisNode[] slots = isCluster
          ? slots(nodes, deadline)
          : new RedisNode[] {node(nodes, isSentinel ? primary(deadline) : seeds(6379).get(0))};
      servers = new Servers(nodes, slots);
      if (seen != null) {
        seen.nodes.values().stream().filter(node -> !nodes.containsValue(node)).forEach(RedisNode::close);
      }
      if (closed) {
        close(); // which has not seen these
      }
      return servers;
    } finally {
      refreshes.unlock();
    }
  }

  private List<HostAndPort> seeds(int port) {
    return url.hosts().stream().map(host -> new HostAndPort(host.name(), host.port() == 0 ? port : host.port())).toList();
  }

  private RedisNode node(Map<HostAndPort, RedisNode> nodes, HostAndPort address) {
    return nodes.computeIfAbsent(address, each -> {
      RedisNode known = servers == null ? null : servers.nodes.get(each);
      if (known != null) {
        return known;
      }
      return new RedisNode(each, config, connections);
    });
  }

  /** The part of the time for the next of some servers: one that is silent leaves the others theirs. */
  private static Deadline share(Deadline deadline, int servers) {
    return deadline.within(Math.min(REQUEST_MS, deadline.leftMillis() / servers));
  }

  private HostAndPort primary(Deadline deadline) {
    String name = url.path().split("/")[0];
    Exception why = null; // a refusal only if all refuse
    List<HostAndPort> left = new ArrayList<>(seeds(26379));
    while (!left.isEmpty() && !deadline.isOver()) {
      Deadline part = share(deadline, left.size());
      try (Pipe sentinel = new Pipe(left.remove(0), sentinelConfig, part)) {
        sentinel.sendCommand(Protocol.Command.SENTINEL, "GET-MASTER-ADDR-BY-NAME", name);
        if (sentinel.reply(part) instanceof List<?> address) {
          return new HostAndPort(text(address.get(0)), Integer.parseInt(text(address.get(1))));
        }
        why = new JedisException("it knows no primary " + name);
      } catch (JedisException | ClassCastException | IndexOutOfBoundsException | IllegalArgumentException unreached) { // or of another form
        why = why == null || isRefusal(why) ? unreached : why;
      }
    }
    if (left.isEmpty() && isRefusal(why)) {
      throw new ConfigError("store " + url.shown() + ": a Sentinel refuses this user: " + why.getMessage(), why, false);
    }
    throw new JedisConnectionException("no Sentinel names the primary " + name + ": " + why, why);
  }

  private RedisNode[] slots(Map<HostAndPort, RedisNode> nodes, Deadline deadline) {
    Set<HostAndPort> asked = new LinkedHashSet<>(servers == null ? List.of() : servers.nodes.keySet());
    asked.addAll(seeds(6379));
    Exception why = null; // a refusal only if all refuse
    HostAndPort named = null;
    List<HostAndPort> left = new ArrayList<>(asked);
    while (!left.isEmpty() && !deadline.isOver()) {
      Deadline part = share(deadline, left.size());
      HostAndPort seed = left.remove(0);
      try (Pipe connection = new Pipe(seed, config, part)) {
        connection.sendCommand(Protocol.Command.CLUSTER, "SLOTS");
        RedisNode[] slots = new RedisNode[SLOTS];
        for (Object range : (List<?>) connection.reply(part)) {
          List<?> parts = (List<?>) range;
          List<?> primary = (List<?>) parts.get(2);
          String host = primary.get(0) == null ? "" : text(primary.get(0)); // null, or "": it does not know it
          if (host.equals("?")) {
            throw new JedisConnectionException(seed + ": " + UNNAMED);
          }
          RedisNode node = node(nodes, new HostAndPort(host.isEmpty() ? seed.getHost() : host, ((Long) primary.get(1)).intValue()));
          Arrays.fill(slots, ((Long) parts.get(0)).intValue(), ((Long) parts.get(1)).intValue() + 1, node);
        }
        return slots;
      } catch (JedisException | ClassCastException | IndexOutOfBoundsException | IllegalArgumentException | NullPointerException unreached) { // or of another form
        why = why == null || isRefusal(why) ? unreached : why;
        named = seed;
      }
    }
    if (left.isEmpty() && isRefusal(why)) {
      throw new ConfigError("store " + url.shown() + ": " + named + " does not list the slots of a Cluster: " + why.getMessage(), why, false);
    }
    throw new JedisConnectionException("no server of the Cluster answers: " + (why == null ? "" : why.getMessage()), why);
  }

  static String text(Object bytes) {
    return new String((byte[]) bytes, StandardCharsets.UTF_8);
  }

  @Override
  public void close() {
    closed = true;
    Servers last = servers;
    if (last != null) {
      last.nodes.values().forEach(RedisNode::close);
    }
  }
}
