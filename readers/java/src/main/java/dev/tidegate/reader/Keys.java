package dev.tidegate.reader;

import dev.tidegate.reader.TidegateException.ConfigError;
import dev.tidegate.reader.TidegateException.CorruptError;
import java.io.ByteArrayOutputStream;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.time.DateTimeException;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** The bytes of keys, and their key groups. */
final class Keys {
  private static final long P1 = 0x9E3779B185EBCA87L;
  private static final long P2 = 0xC2B2AE3D27D4EB4FL;
  private static final long P3 = 0x165667B19E3779F9L;
  private static final long P4 = 0x85EBCA77C2B2AE63L;
  private static final long P5 = 0x27D4EB2F165667C5L;
  private static final long SEED = 42;

  private Keys() {}

  /** The key group of a key: of a table with a stride, a multiple of it. */
  static int group(byte[] key, int keyGroups, int stride) {
    int group = (int) Long.remainderUnsigned(xxh64(key, SEED), keyGroups);
    return group - group % stride;
  }

  /** XXH64. */
  static long xxh64(byte[] bytes, long seed) {
    ByteBuffer in = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
    long hash = seed + P5;
    if (bytes.length >= 32) {
      long a = seed + P1 + P2;
      long b = seed + P2;
      long c = seed;
      long d = seed - P1;
      while (in.remaining() >= 32) {
        a = round(a, in.getLong());
        b = round(b, in.getLong());
        c = round(c, in.getLong());
        d = round(d, in.getLong());
      }
      hash = Long.rotateLeft(a, 1) + Long.rotateLeft(b, 7) + Long.rotateLeft(c, 12) + Long.rotateLeft(d, 18);
      for (long lane : new long[] {a, b, c, d}) {
        hash = (hash ^ round(0, lane)) * P1 + P4;
      }
    }
    hash += bytes.length;
    while (in.remaining() >= 8) {
      hash = Long.rotateLeft(hash ^ round(0, in.getLong()), 27) * P1 + P4;
    }
    if (in.remaining() >= 4) {
      hash = Long.rotateLeft(hash ^ (in.getInt() & 0xFFFFFFFFL) * P1, 23) * P2 + P3;
    }
    while (in.hasRemaining()) {
      hash = Long.rotateLeft(hash ^ (in.get() & 0xFFL) * P5, 11) * P1;
    }
    hash = (hash ^ hash >>> 33) * P2;
    hash = (hash ^ hash >>> 29) * P3;
    return hash ^ hash >>> 32;
  }

  private static long round(long lane, long input) {
    return Long.rotateLeft(lane + input * P2, 31) * P1;
  }

  /** The bytes of a key: of several columns, netstrings. */
  static byte[] encode(List<?> values, List<Type> types) {
    if (values.size() != types.size()) {
      throw new ConfigError("the key has " + types.size() + " columns, " + values.size() + " values were given");
    }
    if (types.size() == 1) {
      return encodeOne(values.get(0), types.get(0));
    }
    ByteArrayOutputStream key = new ByteArrayOutputStream();
    for (int at = 0; at < types.size(); at++) {
      byte[] part = encodeOne(values.get(at), types.get(at));
      key.writeBytes((part.length + ":").getBytes(StandardCharsets.UTF_8));
      key.writeBytes(part);
      key.write(',');
    }
    return key.toByteArray();
  }

  private static byte[] encodeOne(Object value, Type type) {
    try {
      String text = null;
      switch (type.kind()) {
        case STRING -> {
          if (value instanceof String string && type.text().equals("string")) { // no key is a char or an interval
            ByteBuffer utf8 = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(string));
            return Arrays.copyOf(utf8.array(), utf8.limit());
          }
        }
        case BINARY -> {
          if (value instanceof byte[] bytes) {
            return bytes.clone();
          }
        }
        case BOOLEAN -> text = value instanceof Boolean ? value.toString() : null;
        case TINYINT, SMALLINT, INT, BIGINT -> text = wholeText(value, type);
        case DATE -> text = value instanceof LocalDate day && Type.isKnownYear(day.getYear()) ? day.toString() : null;
        case TIMESTAMP -> text = value instanceof Instant time ? micros(time) : null;
        case TIMESTAMP_NTZ -> text = value instanceof LocalDateTime time ? micros(time.toInstant(ZoneOffset.UTC)) : null;
        case DECIMAL -> {
          BigDecimal number = value instanceof BigDecimal decimal ? decimal : isWhole(value) ? new BigDecimal(value.toString()) : null;
          text = number == null ? null : type.exact(number).toPlainString();
        }
        default -> text = null;
      }
      if (text != null) {
        return text.getBytes(StandardCharsets.UTF_8);
      }
    } catch (CharacterCodingException | ArithmeticException | DateTimeException unfit) {
      // the error below names the value
    }
    String kind = value == null ? "" : " (" + value.getClass().getSimpleName() + ")";
    throw new ConfigError(value + kind + " is not a value of the key column's type, " + type.text());
  }

  private static boolean isWhole(Object value) {
    return value instanceof Long || value instanceof Integer || value instanceof Short || value instanceof Byte
        || value instanceof BigInteger;
  }

  private static String wholeText(Object value, Type type) {
    return isWhole(value) && type.holds(new BigInteger(value.toString())) ? value.toString() : null;
  }

  private static String micros(Instant time) {
    if (time.getNano() % 1_000 != 0 || !Type.isKnownYear(time.atOffset(ZoneOffset.UTC).getYear())) {
      return null;
    }
    return Long.toString(Math.addExact(Math.multiplyExact(time.getEpochSecond(), 1_000_000), time.getNano() / 1_000));
  }

  /** The values of a key. */
  static List<Object> decode(byte[] key, List<Type> types) {
    try {
      List<Object> values = new ArrayList<>();
      if (types.size() == 1) {
        values.add(decodeOne(key, types.get(0)));
      } else {
        int at = 0;
        for (Type type : types) {
          int colon = at;
          while (key[colon] != ':') {
            colon++;
          }
          int end = colon + 1 + Integer.parseInt(new String(key, at, colon - at, StandardCharsets.UTF_8));
          values.add(decodeOne(Arrays.copyOfRange(key, colon + 1, end), type));
          at = end + 1;
        }
      }
      if (Arrays.equals(encode(values, types), key)) {
        return values;
      }
    } catch (RuntimeException unfit) {
      // the error below has the key
    }
    throw new CorruptError("the stored key " + Stored.shown(key) + " is no key of the columns' types");
  }

  private static Object decodeOne(byte[] part, Type type) {
    if (type.kind() == Type.Kind.BINARY) {
      return part;
    }
    String text = new String(part, StandardCharsets.UTF_8);
    return switch (type.kind()) {
      case STRING -> text;
      case BOOLEAN -> Boolean.valueOf(text);
      case DECIMAL -> type.exact(new BigDecimal(text));
      case TINYINT, SMALLINT, INT, BIGINT -> type.whole(new BigInteger(text));
      case DATE -> LocalDate.parse(text);
      case TIMESTAMP -> Type.instant(Long.parseLong(text));
      case TIMESTAMP_NTZ -> LocalDateTime.ofInstant(Type.instant(Long.parseLong(text)), ZoneOffset.UTC);
      default -> throw new IllegalArgumentException();
    };
  }
}
