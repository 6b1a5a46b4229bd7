package dev.tidegate.reader;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import dev.tidegate.reader.TidegateException.ConfigError;
import java.io.IOException;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;

/**
 * A column's type, and how its values are decoded. {@code element} is that of an array, or of a map's values;
 * {@code fields} are a struct's.
 */
record Type(Kind kind, String text, int precision, int scale, Type key, Type element, Map<String, Type> fields) {
  enum Kind {
    STRING, BINARY, BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL, DATE, TIMESTAMP, TIMESTAMP_NTZ, VOID,
    ARRAY, MAP, STRUCT
  }

  static final int NESTED_MAX = 100;
  private static final Set<Kind> NO_MAP_KEY = Set.of(Kind.BINARY, Kind.VOID, Kind.ARRAY, Kind.MAP, Kind.STRUCT);
  private static final Map<Kind, Integer> BITS = Map.of(Kind.TINYINT, 7, Kind.SMALLINT, 15, Kind.INT, 31, Kind.BIGINT, 63);
  private static final Set<String> NO_NUMBERS = Set.of("NaN", "Infinity", "-Infinity");
  private static final Pattern DATE = Pattern.compile("\\d{4}-\\d\\d-\\d\\d");
  private static final Pattern TIME = Pattern.compile("\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(\\.\\d{1,6})?");
  private static final Pattern WHOLE = Pattern.compile("-?(0|[1-9]\\d{0,19})");
  private static final Pattern NUMBER = Pattern.compile("-?(0|[1-9]\\d*)(\\.\\d+)?([eE][+-]?\\d+)?");
  private static final int EXPONENT_MAX = 999;

  // -- values ------------------------------------------------------------------------------------

  /**
   * The value that begins at the parser's token, as stores have it. Numbers are read as text, so none loses a digit or a
   * sign. Throws IllegalArgumentException, ArithmeticException, DateTimeException: it is not of this type.
   */
  Object decode(JsonParser in) throws IOException {
    JsonToken token = in.currentToken();
    if (token == JsonToken.VALUE_NULL) {
      return null;
    }
    switch (kind) {
      case STRING:
        return textual(in);
      case BINARY:
        byte[] content = Base64.getDecoder().decode(textual(in));
        check(Base64.getEncoder().encodeToString(content).equals(in.getText())); // no spare bits, no padding left out
        return content;
      case BOOLEAN:
        check(token.isBoolean());
        return token == JsonToken.VALUE_TRUE;
      case TINYINT, SMALLINT, INT, BIGINT:
        check(token == JsonToken.VALUE_NUMBER_INT);
        return whole(new BigInteger(in.getText()));
      case FLOAT, DOUBLE:
        check(token.isNumeric() || NO_NUMBERS.contains(textual(in)));
        return floating(in.getText());
      case DECIMAL:
        check(token.isNumeric());
        return exact(decimal(in.getText()));
      case DATE, TIMESTAMP, TIMESTAMP_NTZ:
        return time(textual(in));
      case ARRAY:
        check(token == JsonToken.START_ARRAY);
        List<Object> elements = new ArrayList<>();
        while (in.nextToken() != JsonToken.END_ARRAY) {
          elements.add(element.decode(in));
        }
        return Collections.unmodifiableList(elements);
      case MAP:
        check(token == JsonToken.START_OBJECT);
        Map<Object, Object> entries = new LinkedHashMap<>();
        while (in.nextToken() != JsonToken.END_OBJECT) {
          Object entry = key.fromText(in.currentName());
          in.nextToken();
          entries.put(entry, element.decode(in));
        }
        return Collections.unmodifiableMap(entries);
      case STRUCT:
        check(token == JsonToken.START_OBJECT);
        Map<String, Object> columns = new LinkedHashMap<>();
        fields.keySet().forEach(name -> columns.put(name, null));
        while (in.nextToken() != JsonToken.END_OBJECT) {
          String name = in.currentName();
          in.nextToken();
          if (fields.containsKey(name)) {
            columns.put(name, fields.get(name).decode(in));
          } else {
            in.skipChildren();
          }
        }
        return new Row(columns, 1, false);
      default:
        throw new IllegalArgumentException("a value that is not null, of a column of type void");
    }
  }

  /** The value of this text, which is a map's key. */
  private Object fromText(String text) {
    return switch (kind) {
      case STRING -> text;
      case BOOLEAN -> {
        check(text.equals("true") || text.equals("false"));
        yield text.equals("true");
      }
      case FLOAT, DOUBLE -> {
        check(NO_NUMBERS.contains(text) || NUMBER.matcher(text).matches());
        Number number = floating(text);
        yield number.doubleValue() == 0 ? floating("0") : number; // zero is one key, with and without a sign
      }
      case DECIMAL -> {
        check(NUMBER.matcher(text).matches());
        yield exact(decimal(text));
      }
      case TINYINT, SMALLINT, INT, BIGINT -> {
        check(WHOLE.matcher(text).matches());
        yield whole(new BigInteger(text));
      }
      default -> timeOrNumber(text);
    };
  }

  /** A time in a map's key: as in values, or, in rows of older releases, the days or microseconds since 1970. */
  private Object timeOrNumber(String text) {
    if (!WHOLE.matcher(text).matches()) {
      return time(text);
    }
    long number = Long.parseLong(text);
    if (kind == Kind.DATE) {
      LocalDate day = LocalDate.ofEpochDay(number);
      check(isKnownYear(day.getYear()));
      return day;
    }
    LocalDateTime time = LocalDateTime.ofInstant(instant(number), ZoneOffset.UTC);
    check(isKnownYear(time.getYear()));
    return kind == Kind.TIMESTAMP ? time.toInstant(ZoneOffset.UTC) : time;
  }

  private Object time(String text) {
    check(!text.startsWith("0000"));
    if (kind == Kind.DATE) {
      check(DATE.matcher(text).matches());
      return LocalDate.parse(text);
    }
    String local = kind == Kind.TIMESTAMP && text.endsWith("Z") ? text.substring(0, text.length() - 1) : text;
    check(TIME.matcher(local).matches() && (kind == Kind.TIMESTAMP) == text.endsWith("Z"));
    LocalDateTime time = LocalDateTime.parse(local);
    return kind == Kind.TIMESTAMP ? time.toInstant(ZoneOffset.UTC) : time;
  }

  /** The float or double that this text is: a float is not rounded twice. */
  private Number floating(String text) {
    Number number = kind == Kind.FLOAT ? (Number) Float.valueOf(text) : (Number) Double.valueOf(text);
    check(NO_NUMBERS.contains(text) || Double.isFinite(number.doubleValue()));
    return number;
  }

  private static BigDecimal decimal(String text) {
    int exponent = Math.max(text.indexOf('e'), text.indexOf('E'));
    check(exponent < 0 || Math.abs(Long.parseLong(text.substring(exponent + 1))) <= EXPONENT_MAX);
    return new BigDecimal(text);
  }

  boolean holds(BigInteger number) {
    return number.bitLength() <= BITS.get(kind);
  }

  /** An Integer, of a bigint a Long. */
  Number whole(BigInteger number) {
    check(holds(number));
    if (kind == Kind.BIGINT) {
      return number.longValueExact();
    }
    return number.intValueExact();
  }

  /** The number with all digits of the scale. Throws ArithmeticException: it is not exactly one of this type. */
  BigDecimal exact(BigDecimal number) {
    if (number.signum() == 0) {
      return BigDecimal.ZERO.setScale(scale);
    }
    long wholeDigits = (long) number.precision() - number.scale();
    if (wholeDigits > precision - scale || (long) number.scale() - scale >= number.precision()) {
      throw new ArithmeticException("a number that is not exactly one of " + text);
    }
    return number.setScale(scale);
  }

  static Instant instant(long micros) {
    return Instant.ofEpochSecond(Math.floorDiv(micros, 1_000_000L), Math.floorMod(micros, 1_000_000L) * 1_000L);
  }

  static boolean isKnownYear(int year) {
    return year >= 1 && year <= 9999;
  }

  private static String textual(JsonParser in) throws IOException {
    check(in.currentToken() == JsonToken.VALUE_STRING);
    return in.getText();
  }

  private static void check(boolean fits) {
    if (!fits) {
      throw new IllegalArgumentException("a value of another type, or out of its range");
    }
  }

  // -- names of types ----------------------------------------------------------------------------

  /** The type of Spark's simple name, as in {@code array<decimal(10,2)>}. */
  static Type of(String name) {
    long depth = name.chars().filter(each -> each == '<').count();
    if (depth > NESTED_MAX && deepest(name) > NESTED_MAX) {
      throw new ConfigError("a column's type is nested more than " + NESTED_MAX + " levels deep");
    }
    Parser parser = new Parser(name);
    Type type = parser.next();
    if (parser.at != name.length()) {
      throw unknown(name);
    }
    return type;
  }

  private static int deepest(String name) {
    int depth = 0;
    int most = 0;
    for (char each : name.toCharArray()) {
      depth += each == '<' ? 1 : each == '>' ? -1 : 0;
      most = Math.max(most, depth);
    }
    return most;
  }

  private static Type array(Type element) {
    return new Type(Kind.ARRAY, "array<" + element.text + ">", 0, 0, null, element, Map.of());
  }

  private static Type map(Type key, Type element) {
    String text = "map<" + key.text + "," + element.text + ">";
    if (NO_MAP_KEY.contains(key.kind)) {
      throw unknown(text);
    }
    return new Type(Kind.MAP, text, 0, 0, key, element, Map.of());
  }

  private static Type struct(Map<String, Type> fields) {
    List<String> parts = fields.entrySet().stream().map(each -> each.getKey() + ":" + each.getValue().text).toList();
    return new Type(Kind.STRUCT, "struct<" + String.join(",", parts) + ">", 0, 0, null, null, Collections.unmodifiableMap(fields));
  }

  private static ConfigError unknown(String name) {
    String start = name.length() > 100 ? name.substring(0, 100) + "..." : name;
    return new ConfigError("a column has the type " + start + ", which this release does not know: upgrade the reader");
  }

  private static final class Parser {
    private final String text;
    private int at;

    Parser(String text) {
      this.text = text;
    }

    Type next() {
      int start = at;
      while (at < text.length() && "<,>(".indexOf(text.charAt(at)) < 0) {
        at++;
      }
      String word = text.substring(start, at).strip();
      switch (word) {
        case "decimal":
          int[] arguments = arguments();
          if (arguments.length != 2 || arguments[0] < 1 || arguments[0] > 38 || arguments[1] > 38) {
            throw unknown(text);
          }
          return simple(Kind.DECIMAL, "decimal(" + arguments[0] + "," + arguments[1] + ")", arguments[0], arguments[1]);
        case "char", "varchar":
          arguments();
          return simple(Kind.STRING, text.substring(start, at), 0, 0);
        case "array":
          after('<');
          Type element = next();
          after('>');
          return array(element);
        case "map":
          after('<');
          Type key = next();
          after(',');
          Type value = next();
          after('>');
          return map(key, value);
        case "struct":
          return struct(fields());
        default:
          if (word.startsWith("interval ") || word.startsWith("string collate ")) {
            return simple(Kind.STRING, word, 0, 0);
          }
          for (Kind kind : Kind.values()) {
            if (kind.name().toLowerCase(Locale.ROOT).equals(word)) {
              return simple(kind, word, 0, 0);
            }
          }
          throw unknown(text);
      }
    }

    private static Type simple(Kind kind, String name, int precision, int scale) {
      return new Type(kind, name, precision, scale, null, null, Map.of());
    }

    private Map<String, Type> fields() {
      Map<String, Type> fields = new LinkedHashMap<>();
      after('<');
      while (at < text.length() && text.charAt(at) != '>') {
        int colon = text.indexOf(':', at);
        if (colon < 0) {
          throw unknown(text);
        }
        String name = text.substring(at, colon);
        at = colon + 1;
        fields.put(name, next());
        if (at < text.length() && text.charAt(at) == ',') {
          at++;
        }
      }
      after('>');
      return fields;
    }

    private int[] arguments() {
      after('(');
      int end = text.indexOf(')', at);
      if (end < 0 || !text.substring(at, end).matches("\\s*\\d{1,9}\\s*(,\\s*\\d{1,9}\\s*)*")) {
        throw unknown(text);
      }
      String[] parts = text.substring(at, end).split(",");
      at = end + 1;
      int[] numbers = new int[parts.length];
      for (int part = 0; part < parts.length; part++) {
        numbers[part] = Integer.parseInt(parts[part].strip());
      }
      return numbers;
    }

    private void after(char mark) {
      if (at >= text.length() || text.charAt(at) != mark) {
        throw unknown(text);
      }
      at++;
    }
  }
}
