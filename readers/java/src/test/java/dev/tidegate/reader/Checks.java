package dev.tidegate.reader;

import com.datastax.oss.driver.api.core.cql.Row;
import dev.tidegate.reader.Store.Answer;
import dev.tidegate.reader.Store.Entry;
import dev.tidegate.reader.Store.Identity;
import dev.tidegate.reader.Store.Pages;
import dev.tidegate.reader.Store.Pointer;
import dev.tidegate.reader.Store.Space;
import dev.tidegate.reader.Store.TableAt;
import dev.tidegate.reader.TidegateException.ConfigError;
import dev.tidegate.reader.TidegateException.CorruptError;
import dev.tidegate.reader.TidegateException.StoreUnavailableError;
import java.io.DataInputStream;
import java.io.IOException;
import java.lang.reflect.Constructor;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.IntStream;
import redis.clients.jedis.util.JedisClusterCRC16;

/** Checks of what no server shows on demand; test_java_reader.py runs them. */
final class Checks {
  public static void main(String[] none) throws Exception {
    raises(ConfigError.class, () -> StoreUrl.of("redis://127.0.0.1:65536"));
    raises(ConfigError.class, () -> StoreUrl.server("green:65536"));
    connections();
    lastWords();
    deadlines();
    slowReplies();
    waits();
    schemas();
    scans();
    NodeChecks.all();
  }

  static void check(boolean holds, String what) {
    if (!holds) {
      throw new AssertionError(what);
    }
  }

  static <E extends Exception> void raises(Class<E> wanted, Runnable call) {
    try {
      call.run();
    } catch (RuntimeException error) {
      check(wanted.isInstance(error), "not a " + wanted.getSimpleName() + ": " + error);
      return;
    }
    throw new AssertionError("no " + wanted.getSimpleName());
  }

  // -- connections -------------------------------------------------------------------------------

  /**
   * A primary of a Cluster: it refuses logins while {@code refuses}, never answers {@code silent}, and answers any other
   * command with 1.
   */
  private static final class Primary {
    final ServerSocket socket = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    final CountDownLatch asked = new CountDownLatch(1);
    volatile Set<String> silent = Set.of();
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
        if (silent.contains(words.get(0))) {
          asked.countDown();
          continue;
        }
        String reply = switch (words.get(0)) {
          case "AUTH" -> refuses ? "-WRONGPASS no such user\r\n" : "+OK\r\n";
          case "CLUSTER" -> slots;
          default -> ":1\r\n";
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
    try (RedisServers servers = new RedisServers(url, options, options.connections)) {
      List<RedisServers.Call> calls = List.of(call(true), call(false));
      for (int tries = 0; tries < 3; tries++) {
        raises(ConfigError.class, () -> servers.run(calls, Deadline.after(options.timeout)));
      }
      raises(ArithmeticException.class, () -> servers.run(List.of(call(true), failing()), Deadline.after(options.timeout)));
      second.refuses = false;
      check(servers.run(calls, Deadline.after(options.timeout)).size() == 2, "one answer is missing");
    }
  }

  /**
   * The error of a connect names what a server says before it ends the connection: at once, or after a byte of a request
   * that it leaves unread, so that the end is a reset.
   */
  private static void lastWords() throws Exception {
    record Row(String words, Class<? extends RuntimeException> error, String told) {}
    List<Row> rows = List.of(
        new Row("ERR max number of clients reached", StoreUnavailableError.class, "max number of clients"),
        new Row("LOADING Redis is loading the dataset in memory", StoreUnavailableError.class, "loading the dataset"),
        new Row("no upstream host", StoreUnavailableError.class, "no upstream host"),
        new Row("DENIED Redis is running in protected mode", ConfigError.class, "protected mode"),
        new Row("NOAUTH Authentication required.", ConfigError.class, "Authentication required"),
        new Row("WRONGPASS invalid username-password pair", ConfigError.class, "invalid username-password pair"),
        new Row("ERR Protocol error: unauthenticated bulk length", ConfigError.class, "Protocol error"));
    List<String> forms = List.of(
        "redis://%s", "redis://user:sesame@%s/3", "redis+cluster://%s", "redis+cluster://:sesame@%s", "redis+sentinel://%s/primary");
    for (Row row : rows) {
      for (boolean isAsked : List.of(false, true)) {
        try (ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
          Primary.daemon(() -> {
            while (true) {
              try (Socket client = server.accept()) {
                if (isAsked) {
                  client.getInputStream().read();
                }
                client.getOutputStream().write(("-" + row.words + "\r\n").getBytes());
              }
            }
          });
          for (String form : forms) {
            String url = form.formatted("127.0.0.1:" + server.getLocalPort());
            try {
              Gate.connect(url, "flights", new Options().timeout(Duration.ofMillis(300))).close();
              throw new AssertionError(url + " was connected");
            } catch (TidegateException error) {
              check(row.error.isInstance(error) && error.getMessage().contains(row.told), form + ", " + row.words + ": " + error);
            }
          }
        }
      }
    }
  }

  /** Calls end at their deadline, where four servers take connections and are silent, and many threads ask. */
  private static void deadlines() throws Exception {
    List<Primary> primaries = List.of(new Primary(), new Primary(), new Primary(), new Primary());
    StringBuilder slots = new StringBuilder("*4\r\n");
    for (int at = 0; at < 4; at++) {
      slots.append(primaries.get(at).range(4_096 * at, 4_096 * at + 4_095));
    }
    primaries.forEach(each -> each.slots = slots.toString());
    List<RedisServers.Call> calls = IntStream.range(0, 100).mapToObj(number -> call(Store.utf8("k" + number * 0x9E3779B9L))).toList();
    for (String silent : List.of("GET", "CLUSTER")) {
      primaries.forEach(each -> each.silent = Set.of(silent));
      String hosts = String.join(",", primaries.stream().map(each -> "127.0.0.1:" + each.socket.getLocalPort()).toList());
      Options options = new Options().timeout(Duration.ofMillis(500));
      try (RedisServers servers = new RedisServers(StoreUrl.of("redis+cluster://" + hosts), options, 8)) {
        long from = System.nanoTime();
        ExecutorService threads = Executors.newFixedThreadPool(20);
        List<Future<Object>> all = threads.invokeAll(Collections.nCopies(20, Executors.callable(
            () -> raises(StoreUnavailableError.class, () -> servers.run(calls, Deadline.after(options.timeout))))));
        for (Future<Object> each : all) {
          each.get();
        }
        threads.shutdown();
        long millis = (System.nanoTime() - from) / 1_000_000;
        check(millis < 1_200, "calls with 500 ms took " + millis + " ms where " + silent + " is not answered");
      }
    }
  }

  /** A call ends at its deadline, however often a byte of a reply arrives until then, and whatever lengths it announces. */
  private static void slowReplies() throws Exception {
    for (String begin : List.of(":", "+", "$1000000\r\n", "*1000\r\n+", "*999999999\r\n", "*1000\r\n*600000\r\n")) {
      try (ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
        Primary.daemon(() -> {
          while (true) {
            Socket client = server.accept();
            Primary.daemon(() -> drip(client, begin));
          }
        });
        String url = "redis://127.0.0.1:" + server.getLocalPort();
        raises(StoreUnavailableError.class, () -> Gate.connect(url, "n", new Options().timeout(Duration.ofMillis(300))));
      }
    }
  }

  private static void drip(Socket client, String begin) throws IOException {
    client.getInputStream().read();
    for (client.getOutputStream().write(begin.getBytes());; LockSupport.parkNanos(20_000_000)) {
      client.getOutputStream().write('1');
    }
  }

  /** A wait for a version takes no connection from reads. */
  private static void waits() throws Exception {
    Primary server = new Primary();
    server.silent = Set.of("XREAD");
    Options options = new Options().timeout(Duration.ofMillis(500)).connections(1);
    try (RedisStore store = new RedisStore(StoreUrl.of("redis://127.0.0.1:" + server.socket.getLocalPort()), options)) {
      Space space = (Space) made(Class.forName(RedisStore.class.getName() + "$RedisSpace"), store, new Identity("n", "uuid", 8), "store", "library");
      Thread waiter = new Thread(() -> space.awaitNewer(0, Deadline.after(Duration.ofSeconds(60))));
      waiter.setDaemon(true);
      waiter.start();
      server.asked.await();
      space.release("lease", Deadline.after(options.timeout));
    }
  }

  private static RedisServers.Call call(boolean isLow) {
    return call(keyOf(isLow));
  }

  private static RedisServers.Call call(byte[] key) {
    return new RedisServers.Call(key, false, reply -> true, node -> List.of(Store.utf8("GET"), key));
  }

  private static RedisServers.Call failing() {
    return new RedisServers.Call(keyOf(true), false, reply -> true, node -> {
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

  /** A scan that met an error throws it again, and releases its lease: the rows after it would be a part of the table. */
  private static void scans() {
    byte[] schema = Store.utf8("{\"key\":[{\"name\":\"k\",\"type\":\"string\"}],\"value\":[],\"value_format\":\"json\"}");
    List<String> released = new ArrayList<>();
    Deque<List<byte[][]>> pages = new ArrayDeque<>();
    for (String stored : List.of("+{}", "?", "+{}")) {
      byte[][] row = {Store.utf8("key" + pages.size()), Store.utf8(stored)};
      pages.add(Collections.singletonList(row));
    }
    Space space = (Space) Proxy.newProxyInstance(Checks.class.getClassLoader(), new Class<?>[] {Space.class}, (self, method, given) -> {
      switch (method.getName()) {
        case "identity":
          return new Identity("n", "uuid", 8);
        case "schemas":
          return Map.of("t", schema);
        case "scan":
          return (Pages) deadline -> pages.poll();
        case "release":
          return released.add((String) given[0]) ? null : null;
        default:
          return null; // leases
      }
    });
    SpaceReader reader = new SpaceReader(space, "store");
    Options options = new Options();
    ScheduledThreadPoolExecutor renewals = new ScheduledThreadPoolExecutor(1);
    Deadline deadline = Deadline.after(Duration.ofSeconds(10));
    Lease lease = new Lease(reader, Duration.ofSeconds(60), options, renewals, new HashSet<>());
    lease.take(space, 9, deadline);
    Scan scan = new Snapshot(reader, entry(List.of("t")), lease, options).scan("t", true, deadline);
    check(scan.next().key().equals(List.of("key0")), "the first row is missing");
    raises(CorruptError.class, scan::hasNext);
    check(released.size() == 1, "the lease was not released");
    raises(CorruptError.class, scan::hasNext);
    renewals.shutdownNow();
  }

  private static Entry entry(List<String> tables) {
    Map<String, TableAt> at = new HashMap<>();
    tables.forEach(name -> at.put(name, new TableAt(name, 0, 1)));
    return new Entry(9, "", 0, at);
  }

  /** An object of a private constructor. */
  static <T> T made(Class<T> of, Object... arguments) throws Exception {
    Constructor<?> constructor = of.getDeclaredConstructors()[0];
    constructor.setAccessible(true);
    return of.cast(constructor.newInstance(arguments));
  }
}
