package dev.tidegate.reader;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import dev.tidegate.reader.TidegateException.ConfigError;
import dev.tidegate.reader.TidegateException.VersionRegressedError;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;

/** This reader as the conformance program drives it: a JSON request in each line of standard input, a reply for each. */
final class Conformance {
  private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

  private final Map<String, Snapshot> snapshots = new HashMap<>();
  private final Map<String, List<Type>> keyTypes = new HashMap<>();
  private Gate gate;
  private int taken;

  private Conformance() {}

  public static void main(String[] arguments) throws IOException {
    Conformance program = new Conformance();
    PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    try (BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
      for (String line = in.readLine(); line != null; line = in.readLine()) {
        JsonNode request = Schema.JSON.readTree(line);
        out.println(program.reply(request));
        if (request.path("do").asText().equals("close")) {
          break;
        }
      }
    }
    program.disconnect();
  }

  private ObjectNode reply(JsonNode request) {
    ObjectNode reply = NODES.objectNode();
    reply.set("id", request.get("id"));
    try {
      JsonNode answer = answer(request);
      return answer == null ? reply.put("unsupported", true) : reply.set("ok", answer);
    } catch (TidegateException error) {
      return reply.put("error", error.name()).put("message", String.valueOf(error.getMessage()));
    } catch (RuntimeException error) {
      error.printStackTrace();
      return reply.put("error", error.getClass().getSimpleName()).put("message", String.valueOf(error.getMessage()));
    }
  }

  private JsonNode answer(JsonNode request) {
    String table = request.path("table").asText();
    switch (request.path("do").asText()) {
      case "connect":
        Options options = optionsOf(request.path("options"));
        if (options == null || !request.path("url").asText().matches("(redis|cassandra).*")) {
          return null;
        }
        disconnect();
        gate = Gate.connect(request.path("url").asText(), request.path("namespace").asText(), options);
        return NODES.objectNode().put("uuid", gate.uuid()).put("namespace", gate.namespace());
      case "version":
        return NODES.numberNode(connected().version());
      case "tables":
        ArrayNode names = NODES.arrayNode();
        (request.hasNonNull("snapshot") ? snapshot(request).tables() : connected().tables()).forEach(names::add);
        return names;
      case "get":
        Rows found = rows(request, Map.of(table, List.of(request.path("key"))));
        return NODES.objectNode().put("version", found.version()).set("value", Canonical.of(found.of(table).get(0)));
      case "get_many":
        Rows many = rows(request, keysOf(request));
        return NODES.objectNode().put("version", many.version()).set("rows", canonical(many));
      case "repeat":
        return repeat(request);
      case "scan":
        ArrayNode rows = NODES.arrayNode();
        try (Scan scan = request.hasNonNull("snapshot") ? snapshot(request).scan(table) : connected().scan(table)) {
          scan.forEach(item -> rows.add(NODES.arrayNode().add(Canonical.of(item.key())).add(Canonical.of(item.row()))));
          return NODES.objectNode().put("version", scan.version()).set("rows", rows);
        }
      case "snapshot":
        Duration lease = Duration.ofMillis((long) (1_000 * request.path("lease_s").asDouble(60)));
        if (request.hasNonNull("version") && request.path("version").asLong() < 1) {
          throw new ConfigError("version is " + request.path("version") + "; it must be 1 or more");
        }
        Snapshot snapshot = connected().snapshot(request.path("version").asLong(0), lease);
        String name = "s" + ++taken;
        snapshots.put(name, snapshot);
        return NODES.objectNode().put("snapshot", name).put("version", snapshot.version());
      case "release":
        snapshot(request).close();
        snapshots.remove(request.path("snapshot").asText());
        return NODES.booleanNode(true);
      case "wait_for":
        Duration timeout = Duration.ofMillis((long) (1_000 * request.path("timeout_s").asDouble()));
        return NODES.numberNode(connected().waitFor(request.path("version").asLong(), timeout));
      case "encode_key":
        List<Type> types = new ArrayList<>();
        request.path("types").forEach(type -> types.add(Type.of(type.asText())));
        byte[] key = Keys.encode(Canonical.key(request.path("values"), types), types);
        int group = Keys.group(key, request.path("key_groups").asInt(), request.path("stride").asInt(1));
        return NODES.objectNode().put("bytes", HexFormat.of().formatHex(key)).put("key_group", group);
      case "decode_value":
        Schema schema = Schema.of(Store.utf8(request.path("schema").toString()));
        byte[] stored = HexFormat.of().parseHex(request.path("stored").asText());
        return Canonical.of(schema.row(stored, request.path("decided_at_us").asLong()));
      case "close":
        disconnect();
        return NODES.booleanNode(true);
      default:
        return null;
    }
  }

  private static Map<String, List<JsonNode>> keysOf(JsonNode request) {
    Map<String, List<JsonNode>> keys = new LinkedHashMap<>();
    request.path("keys").properties().forEach(of -> {
      keys.put(of.getKey(), new ArrayList<>());
      of.getValue().forEach(keys.get(of.getKey())::add);
    });
    return keys;
  }

  private static ObjectNode canonical(Rows rows) {
    ObjectNode byTable = NODES.objectNode();
    rows.byTable().forEach((name, each) -> byTable.set(name, Canonical.of(each)));
    return byTable;
  }

  private Rows rows(JsonNode request, Map<String, List<JsonNode>> canonical) {
    Snapshot of = request.hasNonNull("snapshot") ? snapshot(request) : null;
    Map<String, List<List<Object>>> keys = typed(canonical, of);
    return of == null ? connected().getMany(keys) : of.getMany(keys);
  }

  private Map<String, List<List<Object>>> typed(Map<String, List<JsonNode>> canonical, Snapshot of) {
    Map<String, List<List<Object>>> keys = new LinkedHashMap<>();
    canonical.forEach((table, each) -> {
      List<Type> types = typesOf(table, of);
      keys.put(table, each.stream().map(key -> Canonical.key(key, types)).toList());
    });
    return keys;
  }

  /** Reads the same keys again and again, from several threads, and returns the answers that differ. */
  private ObjectNode repeat(JsonNode request) {
    Map<String, List<List<Object>>> keys = typed(keysOf(request), null);
    AtomicInteger left = new AtomicInteger(request.path("times").asInt());
    Map<ObjectNode, Integer> counts = new HashMap<>();
    Map<String, Integer> refused = new TreeMap<>();
    Runnable work = () -> {
      while (left.getAndDecrement() > 0) {
        try {
          Rows rows = connected().getMany(keys);
          ObjectNode answer = NODES.objectNode().put("version", rows.version()).set("rows", canonical(rows));
          synchronized (counts) {
            counts.merge(answer, 1, Integer::sum);
          }
        } catch (TidegateException error) {
          synchronized (counts) {
            refused.merge(error.name(), 1, Integer::sum);
          }
          if (error instanceof VersionRegressedError) { // of this connection for good
            left.set(0);
          }
        }
      }
    };
    int size = request.path("threads").asInt(1);
    ExecutorService threads = Executors.newFixedThreadPool(size);
    try {
      for (Future<Object> each : threads.invokeAll(Collections.nCopies(size, Executors.callable(work)))) {
        each.get();
      }
    } catch (InterruptedException | ExecutionException failure) {
      throw new IllegalStateException(failure);
    } finally {
      threads.shutdownNow();
    }
    ArrayNode answers = NODES.arrayNode();
    counts.forEach((answer, count) -> answers.add(answer.put("count", count)));
    ObjectNode byName = NODES.objectNode();
    refused.forEach(byName::put);
    return NODES.objectNode().<ObjectNode>set("answers", answers).set("refused", byName);
  }

  /** The types of a table's key, which never change while it exists. */
  private List<Type> typesOf(String table, Snapshot of) {
    String known = (of == null ? connected().namespace() : of.namespace()) + " " + table;
    if (!keyTypes.containsKey(known)) {
      keyTypes.put(known, (of == null ? connected().schema(table) : of.schema(table)).keyTypes);
    }
    return keyTypes.get(known);
  }

  private Gate connected() {
    if (gate == null) {
      throw new ConfigError("there is no connection: the request `connect` makes one");
    }
    return gate;
  }

  private Snapshot snapshot(JsonNode request) {
    Snapshot found = snapshots.get(request.path("snapshot").asText());
    if (found == null) {
      throw new ConfigError("there is no snapshot " + request.path("snapshot").asText());
    }
    return found;
  }

  private void disconnect() {
    keyTypes.clear();
    snapshots.clear();
    if (gate != null) {
      gate.close();
    }
    gate = null;
  }

  /** The options, null if one is not known. */
  private static Options optionsOf(JsonNode given) {
    Options options = new Options();
    for (Map.Entry<String, JsonNode> option : given.properties()) {
      JsonNode value = option.getValue();
      switch (option.getKey()) {
        case "timeout_s" -> options.timeout(Duration.ofMillis((long) (1_000 * value.asDouble())));
        case "username" -> options.username = value.asText();
        case "password" -> options.password = value.asText();
        case "sentinel_username" -> options.sentinelUsername = value.asText();
        case "sentinel_password" -> options.sentinelPassword = value.asText();
        case "ssl_ca_certs" -> options.caFile(Path.of(value.asText()));
        case "follow_redirects" -> {
          String[] servers = new String[value.size()]; // none of true
          for (int n = 0; n < servers.length; n++) {
            servers[n] = value.get(n).asText();
          }
          if (value.isArray() || value.asBoolean()) {
            options.followRedirects(servers);
          }
        }
        case "local_dc" -> options.localDatacenter(value.asText());
        case "leases" -> options.leases(value.asBoolean());
        default -> {
          return null;
        }
      }
    }
    return options;
  }
}
