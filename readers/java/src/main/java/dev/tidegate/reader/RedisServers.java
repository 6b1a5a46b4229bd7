package dev.tidegate.reader;

import dev.tidegate.reader.TidegateException.ConfigError;
import dev.tidegate.reader.TidegateException.StoreUnavailableError;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.function.Function;
import java.util.regex.Pattern;
import org.apache.commons.pool2.PooledObject;
import org.apache.commons.pool2.impl.DefaultPooledObject;
import org.apache.commons.pool2.impl.GenericObjectPoolConfig;
import redis.clients.jedis.ClientSetInfoConfig;
import redis.clients.jedis.Connection;
import redis.clients.jedis.ConnectionFactory;
import redis.clients.jedis.ConnectionPool;
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
  /** A command for the primary that has the key; {@code words} makes it for that server. */
  record Call(byte[] key, Function<Node, List<byte[]>> words) {}

  /** A connection whose commands can be sent before their replies are read. */
  private static final class Pipe extends Connection {
    Pipe(HostAndPort address, JedisClientConfig config) {
      super(address, config);
    }

    void send() {
      flush();
    }
  }

  /** A primary. {@code id}: its replication id, as it last said; empty before. */
  static final class Node {
    final HostAndPort address;
    final ConnectionPool pool;
    volatile String id = "";

    Node(HostAndPort address, ConnectionPool pool) {
      this.address = address;
      this.pool = pool;
    }
  }

  /** {@code slots}: by slot, in a Cluster; else one. */
  private record Servers(Map<HostAndPort, Node> nodes, Node[] slots) {}

  private static final int REQUEST_MS = 3_000;
  private static final int SLOTS = 16_384;
  private static final int PAUSE_MS = 10;
  private static final int PAUSE_MAX_MS = 200;
  private static final Pattern NOT_NOW = Pattern.compile(
      "^(MOVED|ASK|TRYAGAIN|CLUSTERDOWN|LOADING|BUSY|MASTERDOWN|READONLY|TGSERVER replica)\\b.*|.*non local key.*", Pattern.DOTALL);

  private final StoreUrl url;
  private final Options options;
  private final DefaultJedisClientConfig config;
  private final DefaultJedisClientConfig sentinelConfig;
  private final boolean isCluster;
  private final boolean isSentinel;
  private volatile Servers servers;
  private boolean closed;

  RedisServers(StoreUrl url, Options options) {
    this.url = url;
    this.options = options;
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
    config = configOf(tls, user, password).database(path.length > database ? Integer.parseInt(path[database]) : 0).build();
    sentinelConfig = configOf(tls, options.sentinelUsername, options.sentinelPassword).build();
  }

  private DefaultJedisClientConfig.Builder configOf(boolean tls, String user, String password) {
    int request = (int) Math.min(REQUEST_MS, options.timeout.toMillis());
    DefaultJedisClientConfig.Builder config = DefaultJedisClientConfig.builder()
        .connectionTimeoutMillis(request)
        .socketTimeoutMillis(request)
        .user(user)
        .password(password == null || password.isEmpty() ? null : password)
        .clientSetInfoConfig(ClientSetInfoConfig.DISABLED)
        .ssl(tls);
    if (tls) {
      var context = StoreUrl.sslContext(options);
      var parameters = context.getDefaultSSLParameters();
      parameters.setEndpointIdentificationAlgorithm("HTTPS");
      config.sslSocketFactory(context.getSocketFactory()).sslParameters(parameters);
    }
    return config;
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
      } catch (JedisConnectionException | NoSuchElementException unreached) {
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

  /** Send the open calls once, to all servers before the first reply is read; return why some are still open. */
  private Exception once(Servers seen, List<Call> calls, List<Integer> open, Object[] replies, Deadline deadline) {
    Map<Node, List<Integer>> byNode = new LinkedHashMap<>();
    for (int at : open) {
      byNode.computeIfAbsent(nodeOf(seen, calls.get(at).key), node -> new ArrayList<>()).add(at);
    }
    Map<Node, Pipe> lent = new LinkedHashMap<>();
    try {
      Exception why = send(byNode, calls, lent, deadline);
      for (Node node : List.copyOf(lent.keySet())) {
        Exception unanswered = receive(node, byNode.get(node), lent, replies);
        why = unanswered == null ? why : unanswered;
      }
      open.removeIf(at -> replies[at] != null);
      return why;
    } finally { // those whose replies were not read, because something else was thrown
      lent.forEach((node, connection) -> giveBack(node, connection, false));
    }
  }

  /** Send each server its share; {@code lent} gets the connections on which it was. Return why another one has not got it. */
  private Exception send(Map<Node, List<Integer>> byNode, List<Call> calls, Map<Node, Pipe> lent, Deadline deadline) {
    Exception why = null;
    for (Map.Entry<Node, List<Integer>> share : byNode.entrySet()) {
      Node node = share.getKey();
      try {
        int left = (int) Math.max(1, Math.min(deadline.leftMillis(), REQUEST_MS));
        Pipe connection = borrow(node, left);
        lent.put(node, connection);
        connection.setSoTimeout(left);
        for (int at : share.getValue()) {
          List<byte[]> words = calls.get(at).words.apply(node);
          byte[] command = words.get(0);
          connection.sendCommand(() -> command, words.subList(1, words.size()).toArray(new byte[0][]));
        }
        connection.send();
      } catch (JedisConnectionException | NoSuchElementException unreached) {
        why = unreached;
        giveBack(node, lent.remove(node), false);
      }
    }
    return why;
  }

  /** Read a server's replies to its share, and give back its connection. Return why a reply is missing. */
  private static Exception receive(Node node, List<Integer> share, Map<Node, Pipe> lent, Object[] replies) {
    Exception why = null;
    boolean whole = false;
    try {
      List<Object> answers = lent.get(node).getMany(share.size());
      whole = true;
      for (int at = 0; at < share.size(); at++) {
        Object answer = answers.get(at);
        if (answer instanceof JedisDataException error) {
          String message = String.valueOf(error.getMessage());
          if (NOT_NOW.matcher(message).matches()) {
            why = error;
            continue;
          }
          if (message.startsWith("TGSERVER ")) {
            node.id = message.split(" ")[1];
          }
        }
        replies[share.get(at)] = answer == null ? NIL : answer;
      }
    } catch (JedisConnectionException broken) {
      why = broken;
    } finally {
      giveBack(node, lent.remove(node), whole);
    }
    return why;
  }

  /** The reply "nil" to a whole call. */
  static final Object NIL = new Object();

  private Pipe borrow(Node node, int millis) {
    try {
      return (Pipe) node.pool.borrowObject(Duration.ofMillis(millis));
    } catch (JedisConnectionException | NoSuchElementException unreached) {
      throw unreached;
    } catch (JedisDataException refused) {
      if (NOT_NOW.matcher(String.valueOf(refused.getMessage())).matches()) {
        throw new JedisConnectionException(refused.getMessage(), refused);
      }
      throw new ConfigError("store " + url.shown() + " refuses this user: " + refused.getMessage(), refused, false);
    } catch (Exception failed) {
      throw new JedisConnectionException(failed.getMessage(), failed);
    }
  }

  private static void giveBack(Node node, Connection connection, boolean whole) {
    if (connection == null) {
      return;
    }
    if (whole) {
      node.pool.returnResource(connection);
    } else { // replies that nobody reads may still come: they must not answer the next call
      node.pool.returnBrokenResource(connection);
      node.pool.clear();
    }
  }

  private static Node nodeOf(Servers seen, byte[] key) {
    Node node = seen.slots.length == 1 ? seen.slots[0] : seen.slots[JedisClusterCRC16.getSlot(key)];
    if (node == null) {
      throw new JedisConnectionException("no server has the slot of " + new String(key, StandardCharsets.UTF_8));
    }
    return node;
  }

  // -- which servers -----------------------------------------------------------------------------

  /** Find the servers anew, unless another thread did since {@code seen}. */
  private synchronized Servers refresh(Servers seen, Deadline deadline) {
    if (closed) {
      throw new ConfigError("this gate to store " + url.shown() + " was closed: connect again");
    }
    if (servers != seen || (seen != null && !isCluster && !isSentinel)) {
      return servers;
    }
    Map<HostAndPort, Node> nodes = new LinkedHashMap<>();
    Node[] slots = isCluster ? slots(nodes, deadline) : new Node[] {node(nodes, isSentinel ? primary(deadline) : seeds(6379).get(0))};
    Servers before = servers;
    servers = new Servers(nodes, slots);
    if (before != null) {
      before.nodes.forEach((address, node) -> {
        if (!nodes.containsKey(address)) {
          node.pool.close();
        }
      });
    }
    return servers;
  }

  private List<HostAndPort> seeds(int port) {
    return url.hosts().stream().map(host -> new HostAndPort(host.name(), host.port() == 0 ? port : host.port())).toList();
  }

  private Node node(Map<HostAndPort, Node> nodes, HostAndPort address) {
    return nodes.computeIfAbsent(address, each -> {
      Node known = servers == null ? null : servers.nodes.get(each);
      if (known != null) {
        return known;
      }
      GenericObjectPoolConfig<Connection> pool = new GenericObjectPoolConfig<>();
      pool.setMaxTotal(options.connections);
      pool.setMaxIdle(options.connections);
      pool.setJmxEnabled(false);
      return new Node(each, new ConnectionPool(new ConnectionFactory(each, config) {
        @Override
        public PooledObject<Connection> makeObject() {
          return new DefaultPooledObject<>(new Pipe(each, config));
        }
      }, pool));
    });
  }

  private HostAndPort primary(Deadline deadline) {
    String name = url.path().split("/")[0];
    Exception why = null;
    for (HostAndPort seed : seeds(26379)) {
      if (why != null && deadline.isOver()) {
        break;
      }
      try (Connection sentinel = new Connection(seed, sentinelConfig)) {
        sentinel.sendCommand(Protocol.Command.SENTINEL, "GET-MASTER-ADDR-BY-NAME", name);
        if (sentinel.getOne() instanceof List<?> address) {
          return new HostAndPort(text(address.get(0)), Integer.parseInt(text(address.get(1))));
        }
        why = new JedisException("it knows no primary " + name);
      } catch (JedisException unreached) {
        why = unreached;
      }
    }
    throw new JedisConnectionException("no Sentinel names the primary " + name + ": " + why, why);
  }

  private Node[] slots(Map<HostAndPort, Node> nodes, Deadline deadline) {
    List<HostAndPort> asked = new ArrayList<>(servers == null ? List.of() : servers.nodes.keySet());
    asked.addAll(seeds(6379));
    Exception why = null;
    for (HostAndPort seed : asked) {
      if (why != null && deadline.isOver()) {
        break;
      }
      try (Connection connection = new Connection(seed, config)) {
        connection.sendCommand(Protocol.Command.CLUSTER, "SLOTS");
        Node[] slots = new Node[SLOTS];
        for (Object range : (List<?>) connection.getOne()) {
          List<?> parts = (List<?>) range;
          List<?> primary = (List<?>) parts.get(2);
          String host = text(primary.get(0));
          Node node = node(nodes, new HostAndPort(host.isEmpty() ? seed.getHost() : host, ((Long) primary.get(1)).intValue()));
          Arrays.fill(slots, ((Long) parts.get(0)).intValue(), ((Long) parts.get(1)).intValue() + 1, node);
        }
        return slots;
      } catch (JedisConnectionException unreached) {
        why = unreached;
      } catch (JedisException refused) {
        if (NOT_NOW.matcher(String.valueOf(refused.getMessage())).matches()) {
          why = refused;
          continue;
        }
        throw new ConfigError("store " + url.shown() + ": " + seed + " does not tell the slots of a Cluster: " + refused.getMessage(), refused, false);
      }
    }
    throw new JedisConnectionException("no server of the Cluster answers: " + why, why);
  }

  static String text(Object bytes) {
    return new String((byte[]) bytes, StandardCharsets.UTF_8);
  }

  @Override
  public synchronized void close() {
    closed = true;
    if (servers != null) {
      servers.nodes.values().forEach(node -> node.pool.close());
    }
  }
}
