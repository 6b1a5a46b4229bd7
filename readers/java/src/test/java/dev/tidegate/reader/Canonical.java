package dev.tidegate.reader;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import dev.tidegate.reader.TidegateException.ConfigError;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.DateTimeException;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;

/** Values in the form in which the conformance program compares them, the same in every language. */
final class Canonical {
  private static final DateTimeFormatter TIME = DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss.SSSSSS");
  private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

  private Canonical() {}

  static JsonNode of(Object value) {
    if (value == null) {
      return NODES.nullNode();
    }
    if (value instanceof Boolean bool) {
      return NODES.booleanNode(bool);
    }
    if (value instanceof List<?> list) {
      ArrayNode array = NODES.arrayNode();
      list.forEach(each -> array.add(of(each)));
      return array;
    }
    if (value instanceof Map<?, ?> map) {
      ArrayNode pairs = NODES.arrayNode();
      map.forEach((key, each) -> pairs.add(NODES.arrayNode().add(of(key)).add(of(each))));
      return pairs;
    }
    if (value instanceof Row row) {
      if (row.isBytes()) {
        return of(row.asMap().values().iterator().next());
      }
      ObjectNode object = NODES.objectNode();
      row.asMap().forEach((name, each) -> object.set(name, of(each)));
      return object;
    }
    return NODES.textNode(textOf(value));
  }

  private static String textOf(Object value) {
    if (value instanceof byte[] bytes) {
      return HexFormat.of().formatHex(bytes);
    }
    if (value instanceof BigDecimal number) {
      return number.toPlainString();
    }
    if (value instanceof Instant time) {
      return TIME.format(time.atOffset(ZoneOffset.UTC)) + "Z";
    }
    return value instanceof LocalDateTime time ? TIME.format(time) : value.toString();
  }

  /** The values of a key. Throws ConfigError: one is not of its type. */
  static List<Object> key(JsonNode values, List<Type> types) {
    List<Object> key = new ArrayList<>();
    if (!values.isArray() || values.size() != types.size()) {
      throw new ConfigError("a key is a list of " + types.size() + " values, not " + values);
    }
    for (int at = 0; at < types.size(); at++) {
      key.add(value(values.get(at), types.get(at)));
    }
    return key;
  }

  private static Object value(JsonNode value, Type type) {
    try {
      if (type.kind() == Type.Kind.BOOLEAN) {
        return value.isBoolean() ? value.booleanValue() : value.toString();
      }
      if (!value.isTextual()) {
        throw new IllegalArgumentException("it is no text");
      }
      String text = value.textValue();
      return switch (type.kind()) {
        case BINARY -> HexFormat.of().parseHex(text);
        case TINYINT, SMALLINT, INT, BIGINT -> new BigInteger(text);
        case DECIMAL -> new BigDecimal(text);
        case DATE -> LocalDate.parse(text);
        case TIMESTAMP -> Instant.parse(text);
        case TIMESTAMP_NTZ -> LocalDateTime.parse(text);
        default -> text;
      };
    } catch (IllegalArgumentException | DateTimeException unfit) {
      throw new ConfigError(value + " is not a value of the key column's type, " + type.text() + ": " + unfit.getMessage());
    }
  }
}
