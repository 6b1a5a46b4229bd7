package dev.tidegate.reader;

import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.Connection;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Protocol;

/**
 * The times of warm reads beside those of the bare client, once the JIT has compiled both. The first line of standard input is
 * a JSON object: {@code url}, {@code namespace}, {@code one} (table and key), {@code many} (by table, keys), {@code scan}
 * (a table), {@code seconds}; keys are single strings. The answer has the median of each in microseconds, and the same
 * reads of plain hashes that have the same keys: {@code plain} (by table, the name of the hash).
 */
final class Bench {
  private Bench() {}

  public static void main(String[] arguments) throws IOException {
    var request = Schema.JSON.readTree(System.in);
    Map<String, List<List<Object>>> many = new LinkedHashMap<>();
    request.path("many").properties().forEach(of -> {
      List<List<Object>> keys = new ArrayList<>();
      of.getValue().forEach(key -> keys.add(List.of(key.asText())));
      many.put(of.getKey(), keys);
    });
    String table = request.path("one").path(0).asText();
    String key = request.path("one").path(1).asText();
    String scan = request.path("scan").asText();
    long nanos = (long) (request.path("seconds").asDouble(2) * 1e9);
    StoreUrl url = StoreUrl.of(request.path("url").asText());
    ObjectNode answer = JsonNodeFactory.instance.objectNode();
    try (Gate gate = Gate.connect(request.path("url").asText(), request.path("namespace").asText());
        Snapshot snapshot = gate.snapshot();
        Connection bare = new Connection(new HostAndPort(url.hosts().get(0).name(), url.hosts().get(0).port()))) {
      Map<String, Runnable> reads = new LinkedHashMap<>();
      reads.put("one", () -> gate.get(table, key).orElseThrow());
      reads.put("one_bare", () -> one(bare, request.path("plain").path(table).asText(), key));
      reads.put("many", () -> gate.getMany(many));
      reads.put("many_bare", () -> {
        many.forEach((name, keys) -> {
          List<String> words = new ArrayList<>(List.of(request.path("plain").path(name).asText()));
          keys.forEach(each -> words.add((String) each.get(0)));
          bare.sendCommand(Protocol.Command.HMGET, words.toArray(new String[0]));
        });
        bare.getMany(many.size());
      });
      reads.put("scan", () -> snapshot.scan(scan).forEach(item -> {}));
      reads.put("scan_bare", () -> {
        bare.sendCommand(Protocol.Command.HGETALL, request.path("plain").path(scan).asText());
        bare.getOne();
      });
      for (int round = 0; round < 2; round++) { // the first one warms up
        reads.forEach((name, read) -> answer.put(name, median(read, nanos)));
      }
    }
    System.out.println(answer);
  }

  private static void one(Connection bare, String hash, String key) {
    bare.sendCommand(Protocol.Command.HGET, hash, key);
    bare.getOne();
  }

  private static double median(Runnable read, long nanos) {
    long[] times = new long[1_000_000];
    int count = 0;
    for (long end = System.nanoTime() + nanos; System.nanoTime() < end && count < times.length; count++) {
      long from = System.nanoTime();
      read.run();
      times[count] = System.nanoTime() - from;
    }
    Arrays.sort(times, 0, count);
    return times[count / 2] / (double) TimeUnit.MICROSECONDS.toNanos(1);
  }
}
