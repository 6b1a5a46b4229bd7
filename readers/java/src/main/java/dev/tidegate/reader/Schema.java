package dev.tidegate.reader;

import com.fasterxml.jackson.core.JacksonException;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.json.JsonMapper;
import dev.tidegate.reader.TidegateException.ConfigError;
import dev.tidegate.reader.TidegateException.CorruptError;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.DateTimeException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** A table's columns, and how its stored values and keys are decoded. */
public final class Schema {
  /** A column: its name, and Spark's simple name of its type. */
  public record Column(String name, String type) {}

  private record Field(String name, String stored, Type type, int state) {}

  /** Enough for the schema of a type with {@link Type#NESTED_MAX} levels: a struct has three levels of JSON. */
  private static final int JSON_NESTED_MAX = 10 * Type.NESTED_MAX;

  /** Names are as long as strings: they may be keys of maps. */
  static final ObjectMapper JSON =
      JsonMapper.builder(
              JsonFactory.builder()
                  .streamReadConstraints(StreamReadConstraints.builder()
                      .maxStringLength(Integer.MAX_VALUE)
                      .maxNameLength(Integer.MAX_VALUE)
                      .maxNestingDepth(JSON_NESTED_MAX)
                      .build())
                  .build())
          .enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS)
          .build();

  private static final Set<String> FORMATS = Set.of("json", "json_renamed", "json_states", "bytes");
  private static final String GROUPED = "grouped_";

  final List<Type> keyTypes = new ArrayList<>();
  private final List<Column> key = new ArrayList<>();
  private final List<Column> value = new ArrayList<>();
  private final Map<Integer, List<Field>> states = new LinkedHashMap<>();
  private final Map<String, Field> byStored = new HashMap<>();
  private final int version;
  private final boolean isBytes;

  private Schema(JsonNode schema) {
    String format = schema.path("value_format").asText("json");
    String plain = format.startsWith(GROUPED) ? format.substring(GROUPED.length()) : format;
    if (!FORMATS.contains(plain)) {
      throw new ConfigError("the table's value format is '" + format + "', which this release does not know: upgrade it");
    }
    isBytes = plain.equals("bytes");
    version = schema.path("state_version").asInt(1);
    for (JsonNode column : schema.path("key")) {
      keyTypes.add(typeOf(column));
      key.add(new Column(column.path("name").asText(), column.path("type").asText()));
    }
    for (JsonNode older : schema.path("older")) {
      int state = older.path("version").asInt();
      states.put(state, fieldsOf(older.path("value"), state));
    }
    states.put(version, fieldsOf(schema.path("value"), version));
    schema.path("value").forEach(column -> value.add(new Column(column.path("name").asText(), column.path("type").asText())));
    states.values().forEach(of -> of.forEach(field -> byStored.put(field.stored, field)));
    int fields = states.values().stream().mapToInt(List::size).sum();
    boolean hasStates = plain.equals("json_states");
    if (key.isEmpty() || fields != byStored.size() || hasStates != states.size() > 1 || (isBytes && fields != 1)) {
      throw new CorruptError("a table's schema has columns that do not fit together: " + schema);
    }
  }

  private static List<Field> fieldsOf(JsonNode columns, int state) {
    List<Field> fields = new ArrayList<>();
    for (JsonNode column : columns) {
      String name = column.path("name").asText();
      fields.add(new Field(name, column.path("stored").asText(name), typeOf(column), state));
    }
    return fields;
  }

  /** Its tree says the same as the type. */
  private static Type typeOf(JsonNode column) {
    return Type.of(column.path("type").asText());
  }

  /** Decode a schema. Throws ConfigError: this release does not know its format or a type. CorruptError: it is none. */
  static Schema of(byte[] json) {
    return new Schema(object(json, "a table's schema"));
  }

  static JsonNode object(byte[] json, String what) {
    try {
      JsonNode node = JSON.readTree(json);
      if (node != null && node.isObject()) {
        return node;
      }
    } catch (IOException unreadable) {
      throw new CorruptError(what + " cannot be read: " + Stored.shown(json), unreadable);
    }
    throw new CorruptError(what + " is no JSON object: " + Stored.shown(json));
  }

  /** The key's columns, in key order. */
  public List<Column> key() {
    return List.copyOf(key);
  }

  /** The value's columns. */
  public List<Column> value() {
    return List.copyOf(value);
  }

  /** Whether values are bytes, those of the one value column. */
  public boolean isBytes() {
    return isBytes;
  }

  /** The row of a stored value, null if it is absent at a version that was decided then. */
  Row row(byte[] stored, long decidedAtUs) {
    byte[] content = Stored.payload(stored, decidedAtUs);
    if (content == null) {
      return null;
    }
    if (isBytes) {
      return new Row(Map.of(value.get(0).name(), content), version, true);
    }
    try (JsonParser in = JSON.createParser(textOf(content))) {
      return row(in);
    } catch (IOException | IllegalArgumentException | ArithmeticException | DateTimeException unfit) {
      String why = unfit instanceof JacksonException ? ((JacksonException) unfit).getOriginalMessage() : unfit.getMessage();
      throw new CorruptError(
          "the stored value " + Stored.shown(content) + " does not fit the table's columns (" + value + "): " + why, unfit);
    }
  }

  /** The text of JSON in UTF-8, in which escapes of surrogates come in pairs, in fields that are ignored, too. */
  private static String textOf(byte[] content) throws IOException {
    String text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(content)).toString();
    int at = text.indexOf("\\u") < 0 ? -1 : text.indexOf('\\');
    for (; at >= 0; at = text.indexOf('\\', at)) {
      int unit = unitAt(text, at);
      boolean paired = Character.isHighSurrogate((char) unit) && Character.isLowSurrogate((char) unitAt(text, at + 6));
      if (!paired && Character.isSurrogate((char) unit)) {
        throw new IllegalArgumentException("it has half of a pair of surrogates");
      }
      at += paired ? 12 : unit > 0 ? 6 : 2;
    }
    return text;
  }

  /** The UTF-16 unit that is escaped here; 0: none is. */
  private static int unitAt(String text, int at) {
    if (!text.startsWith("\\u", at) || at + 6 > text.length()) {
      return 0;
    }
    try {
      return Integer.parseInt(text, at + 2, at + 6, 16);
    } catch (NumberFormatException none) {
      return 0;
    }
  }

  /** The columns of the state version that wrote the row, which its fields tell. */
  private Row row(JsonParser in) throws IOException {
    if (in.nextToken() != JsonToken.START_OBJECT) {
      throw new IllegalArgumentException("it is no JSON object");
    }
    Map<String, Object> values = new HashMap<>();
    int state = 0;
    while (in.nextToken() != JsonToken.END_OBJECT) {
      Field field = byStored.get(in.currentName());
      in.nextToken();
      if (field == null) {
        in.skipChildren();
        continue;
      }
      if (state != 0 && state != field.state) {
        throw new IllegalArgumentException("it has fields of the state versions " + state + " and " + field.state);
      }
      state = field.state;
      values.put(field.name, field.type.decode(in));
    }
    if (in.nextToken() != null) {
      throw new IllegalArgumentException("something follows it");
    }
    Map<String, Object> columns = new LinkedHashMap<>();
    for (Field field : states.get(state == 0 ? version : state)) {
      columns.put(field.name, values.get(field.name));
    }
    return new Row(columns, state == 0 ? version : state, false);
  }
}
