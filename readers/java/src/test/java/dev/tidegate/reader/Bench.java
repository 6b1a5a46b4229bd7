package dev.tidegate.reader;

import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import redis.clients.jedis.Connection;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Protocol;

/**
 * The reads of benchmarks/bench_readers.py alternately with those of the bare client, once the JIT has compiled both. Arguments:
 * {@code bench -rounds N -key-groups 128 URL NAMESPACE}. It prints medians in microseconds, and the round trips of one call.
 */
final class Bench {
  private static final int KEY_GROUPS = 128;
  private static final long WARM_UP_NANOS = 4_000_000_000L;

  private record Work(String name, int calls, Runnable reader, Runnable bare) {}

  private Bench() {}

  public static void main(String[] arguments) throws IOException {
    int rounds = Integer.parseInt(arguments[2]);
    StoreUrl.Host server = StoreUrl.of(arguments[arguments.length - 2]).hosts().get(0);
    try (ServerSocket proxy = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
      AtomicInteger trips = new AtomicInteger();
      Thread counter = new Thread(() -> count(proxy, server, trips));
      counter.setDaemon(true);
      counter.start();
      List<Work> direct = works(server, arguments[arguments.length - 1], rounds);
      List<Work> counted = works(new StoreUrl.Host("127.0.0.1", proxy.getLocalPort()), arguments[arguments.length - 1], rounds);
      ObjectNode answer = JsonNodeFactory.instance.objectNode();
      for (int at = 0; at < direct.size(); at++) {
        Work work = direct.get(at);
        for (long end = System.nanoTime() + WARM_UP_NANOS; System.nanoTime() < end; ) {
          work.reader.run();
          work.bare.run();
        }
        long[] ours = new long[work.calls];
        long[] bare = new long[work.calls];
        for (int round = 0; round < work.calls; round++) {
          ours[round] = nanos(work.reader);
          bare[round] = nanos(work.bare);
        }
        answer.putObject(work.name).put("us", median(ours)).put("bare_us", median(bare))
            .put("round_trips", tripsOf(counted.get(at).reader, trips)).put("bare_round_trips", tripsOf(counted.get(at).bare, trips));
      }
      System.out.println(answer);
    }
    System.exit(0);
  }

  private static long nanos(Runnable work) {
    long from = System.nanoTime();
    work.run();
    return System.nanoTime() - from;
  }

  private static double median(long[] nanos) {
    Arrays.sort(nanos);
    return nanos[nanos.length / 2] / 1e3;
  }

  private static int tripsOf(Runnable work, AtomicInteger trips) {
    work.run(); // it connects
    trips.set(0);
    work.run();
    return trips.get();
  }

  /** The keys k0 to k39 of two tables, k0 to k40 of a third one, and all rows of a fourth. */
  private static List<Work> works(StoreUrl.Host server, String namespace, int rounds) {
    Gate gate = Gate.connect("redis://" + server.name() + ":" + server.port(), namespace);
    Connection bare = new Connection(new HostAndPort(server.name(), server.port()));
    Map<String, List<List<Object>>> keys = new LinkedHashMap<>();
    Map<String, List<String>> hashes = new LinkedHashMap<>();
    for (String table : List.of("one", "two", "three")) {
      keys.put(table, new ArrayList<>());
      for (int number = 0; number < (table.equals("three") ? 41 : 40); number++) {
        keys.get(table).add(List.of("k" + number));
        String hash = hashOf(table, "k" + number);
        hashes.computeIfAbsent(hash, each -> new ArrayList<>(List.of(each))).add("k" + number);
      }
    }
    return List.of(
        new Work("1 key", rounds, () -> gate.get("one", "k1").orElseThrow(), () -> {
          bare.sendCommand(Protocol.Command.HGET, hashOf("one", "k1"), "k1");
          bare.getOne();
        }),
        new Work("121 keys of 3 tables", rounds, () -> gate.getMany(keys), () -> {
          hashes.values().forEach(words -> bare.sendCommand(Protocol.Command.HMGET, words.toArray(new String[0])));
          bare.getMany(hashes.size());
        }),
        new Work("scan", Math.max(rounds / 20, 10), () -> gate.scan("scanned").forEach(item -> {}), () -> {
          for (int group = 0; group < KEY_GROUPS; group++) {
            bare.sendCommand(Protocol.Command.HGETALL, "bare:scanned:" + group);
          }
          bare.getMany(KEY_GROUPS);
        }));
  }

  private static String hashOf(String table, String key) {
    return "bare:" + table + ":" + Keys.group(Store.utf8(key), KEY_GROUPS, 1);
  }

  /** Relay connections, and count the times that a client sends after the server has answered. */
  private static void count(ServerSocket proxy, StoreUrl.Host server, AtomicInteger trips) {
    AtomicBoolean answered = new AtomicBoolean(true);
    try {
      while (true) {
        Socket client = proxy.accept();
        Socket there = new Socket(server.name(), server.port());
        relay(client, there, () -> trips.addAndGet(answered.getAndSet(false) ? 1 : 0));
        relay(there, client, () -> answered.set(true));
      }
    } catch (IOException closed) {
      // the benchmark has ended
    }
  }

  private static void relay(Socket from, Socket to, Runnable each) {
    Thread thread = new Thread(() -> {
      byte[] buffer = new byte[1 << 16];
      try {
        for (int count = from.getInputStream().read(buffer); count > 0; count = from.getInputStream().read(buffer)) {
          each.run();
          to.getOutputStream().write(buffer, 0, count);
        }
      } catch (IOException closed) {
        // so is the other end
      }
    });
    thread.setDaemon(true);
    thread.start();
  }
}
