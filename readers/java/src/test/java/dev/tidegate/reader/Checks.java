package dev.tidegate.reader;

import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.DefaultConsistencyLevel;
import com.datastax.oss.driver.api.core.NoNodeAvailableException;
import dev.tidegate.reader.Store.Answer;
import dev.tidegate.reader.Store.Entry;
import dev.tidegate.reader.Store.Identity;
import dev.tidegate.reader.Store.Lookup;
import dev.tidegate.reader.Store.Pointer;
import dev.tidegate.reader.Store.Space;
import dev.tidegate.reader.Store.TableAt;
import dev.tidegate.reader.TidegateException.ConfigError;
import dev.tidegate.reader.TidegateException.StoreUnavailableError;
import java.io.DataInputStream;
import java.io.IOException;
import java.lang.reflect.Constructor;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.stream.IntStream;
import redis.clients.jedis.util.JedisClusterCRC16;

/** Checks of what no server shows on demand. The argument is the name of one; test_java_reader.py runs them. */
final class Checks {
  public static void main(String[] names) throws Exception {
    switch (names[0]) {
      case "connections" -> connections();
      case "schemas" -> schemas();
      case "statements" -> statements();
      default -> throw new IllegalArgumentException(names[0]);
    }
  }

  private static void check(boolean holds, String what) {
    if (!holds) {
      throw new AssertionError(what);
    }
  }

  private static <E extends Exception> void raises(Class<E> wanted, Runnable call) {
    try {
      call.run();
    } catch (RuntimeException error) {
      check(wanted.isInstance(error), "not a " + wanted.getSimpleName() + ": " + error);
      return;
    }
    throw new AssertionError("no " + wanted.getSimpleName());
  }

  // -- connections -------------------------------------------------------------------------------

  /** A primary of a Cluster: it refuses logins while {@code refuses}, and answers any other command with OK. */
  private static final class Primary {
    final ServerSocket socket = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    volatile boolean refuses;
    volatile String slots;

    Primary() throws IOException {
      daemon(() -> {
        while (true) {
          Socket client = socket.accept();
          daemon(() -> answer(client));
        }
      });
    }

    private interface Loop {
      void run() throws IOException;
    }

    private static void daemon(Loop loop) {
      Thread thread = new Thread(() -> {
        try {
          loop.run();
        } catch (IOException ended) {
          // so does this thread
        }
      });
      thread.setDaemon(true);
      thread.start();
    }

    private void answer(Socket client) throws IOException {
      DataInputStream in = new DataInputStream(client.getInputStream());
      while (true) {
        List<String> words = new ArrayList<>();
        for (int left = number(in); left > 0; left--) {
          words.add(new String(in.readNBytes(number(in))));
          in.readNBytes(2);
        }
        String reply = switch (words.get(0)) {
          case "AUTH" -> refuses ? "-WRONGPASS no such user\r\n" : "+OK\r\n";
          case "CLUSTER" -> slots;
          default -> "+OK\r\n";
        };
        client.getOutputStream().write(reply.getBytes());
      }
    }

    /** The number of a line such as *3 or $5. */
    private static int number(DataInputStream in) throws IOException {
      in.readByte();
      StringBuilder digits = new StringBuilder();
      for (char each = (char) in.readByte(); each != '\r'; each = (char) in.readByte()) {
        digits.append(each);
      }
      in.readByte();
      return Integer.parseInt(digits.toString());
    }

    String range(int first, int last) {
      return "*3\r\n:" + first + "\r\n:" + last + "\r\n*2\r\n$9\r\n127.0.0.1\r\n:" + socket.getLocalPort() + "\r\n";
    }
  }

  /** A call that one primary refuses gives back its connections to the others. */
  private static void connections() throws Exception {
    Primary first = new Primary();
    Primary second = new Primary();
    first.slots = "*2\r\n" + first.range(0, 8_191) + second.range(8_192, 16_383);
    second.slots = first.slots;
    second.refuses = true;
    StoreUrl url = StoreUrl.of("redis+cluster://u:p@127.0.0.1:" + first.socket.getLocalPort());
    Options options = new Options().timeout(Duration.ofMillis(500)).connections(1);
    try (RedisServers servers = new RedisServers(url, options)) {
      List<RedisServers.Call> calls = List.of(call(true), call(false));
      for (int tries = 0; tries < 3; tries++) {
        raises(ConfigError.class, () -> servers.run(calls, Deadline.after(options.timeout)));
      }
      raises(ArithmeticException.class, () -> servers.run(List.of(call(true), failing()), Deadline.after(options.timeout)));
      second.refuses = false;
      check(servers.run(calls, Deadline.after(options.timeout)).size() == 2, "one answer is missing");
    }
  }

  private static RedisServers.Call call(boolean isLow) {
    byte[] key = keyOf(isLow);
    return new RedisServers.Call(key, node -> List.of(Store.utf8("GET"), key));
  }

  private static RedisServers.Call failing() {
    return new RedisServers.Call(keyOf(true), node -> {
      throw new ArithmeticException();
    });
  }

  private static byte[] keyOf(boolean isLow) {
    return IntStream.range(0, 1_000).mapToObj(number -> Store.utf8("k" + number))
        .filter(key -> isLow == JedisClusterCRC16.getSlot(key) < 8_192).findFirst().orElseThrow();
  }

  // -- schemas -----------------------------------------------------------------------------------

  /** A call keeps the schemas that it has found, also when another call needs so many that the old ones are forgotten. */
  private static void schemas() {
    byte[] schema = Store.utf8("{\"key\":[{\"name\":\"k\",\"type\":\"string\"}],\"value\":[],\"value_format\":\"json\"}");
    Set<String> retired = new HashSet<>();
    List<Runnable> meanwhile = new ArrayList<>();
    Deadline deadline = Deadline.after(Duration.ofSeconds(10));
    ClassLoader loader = Checks.class.getClassLoader();
    Space space = (Space) Proxy.newProxyInstance(loader, new Class<?>[] {Space.class}, (self, method, given) -> {
      switch (method.getName()) {
        case "identity":
          return new Identity("n", "uuid", 8);
        case "pointer":
          return new Pointer(9, "", "", 0, false, null);
        case "schemas":
          Map<String, byte[]> found = new HashMap<>();
          ((Collection<?>) given[0]).stream().filter(id -> !retired.contains(id)).forEach(id -> found.put((String) id, schema));
          return found;
        case "read":
          meanwhile.forEach(Runnable::run);
          return new Answer(null, List.of(Store.utf8("+{}")), null);
        default:
          throw new UnsupportedOperationException(method.getName());
      }
    });
    SpaceReader reader = new SpaceReader(space, "store");
    Entry many = entry(IntStream.range(0, 1_001).mapToObj(number -> "t" + number).toList());
    reader.tables(many, many.tables().keySet(), deadline);
    Entry two = entry(List.of("t0", "new"));
    check(reader.tables(two, two.tables().keySet(), deadline).size() == 2, "a schema that was known is missing");
    reader.tables(many, many.tables().keySet(), deadline);
    meanwhile.add(() -> {
      retired.add("t0");
      reader.tables(entry(List.of("newer")), List.of("newer"), deadline);
    });
    check(reader.at(two, Map.of("t0", List.of(List.of("a"))), deadline).of("t0").get(0) != null, "a row is missing");
  }

  private static Entry entry(List<String> tables) {
    Map<String, TableAt> at = new HashMap<>();
    tables.forEach(name -> at.put(name, new TableAt(name, 0, 1)));
    return new Entry(9, "", 0, at);
  }

  // -- statements --------------------------------------------------------------------------------

  /** Where Cassandra is away at the first use of a statement, each call says so as it does later. */
  private static void statements() throws Exception {
    ClassLoader loader = Checks.class.getClassLoader();
    Object session = Proxy.newProxyInstance(loader, new Class<?>[] {CqlSession.class}, (self, method, given) -> {
      throw new NoNodeAvailableException();
    });
    CassandraStore store = made(CassandraStore.class, "store", session);
    Space space = (Space) made(Class.forName(CassandraStore.class.getName() + "$CassandraSpace"), store, new Identity("n", "uuid", 8),
        "store", UUID.randomUUID(), DefaultConsistencyLevel.QUORUM, DefaultConsistencyLevel.QUORUM);
    Deadline deadline = Deadline.after(Duration.ofSeconds(10));
    TableAt at = new TableAt("id", 0, 1);
    raises(StoreUnavailableError.class, () -> space.pointer(0, deadline));
    raises(StoreUnavailableError.class, () -> space.read(1, List.of(new Lookup("t", at, 0, List.of(Store.utf8("k")), List.of(0))), false, deadline));
    raises(StoreUnavailableError.class, () -> space.scan(1, "t", at).next(deadline));
  }

  /** An object of a private constructor. */
  private static <T> T made(Class<T> of, Object... arguments) throws Exception {
    Constructor<?> constructor = of.getDeclaredConstructors()[0];
    constructor.setAccessible(true);
    return of.cast(constructor.newInstance(arguments));
  }
}
