package dev.tidegate.reader;

import java.io.EOFException;
import java.util.ArrayList;
import java.util.List;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.util.RedisInputStream;

/**
 * The forms of replies. A reply of another form than those to its call is no answer: somebody else's reply has shifted the
 * connection, or another program answers. So the connection is closed, and the call is sent again.
 */
final class RedisForms {
  /** Twice the longest value that a store takes. */
  private static final int TEXT_MAX = 32 << 20;
  /** The most elements of a list; each list in it has at most half of that. */
  private static final int LIST_MAX = 1 << 20;

  static JedisConnectionException noReply() {
    return new JedisConnectionException("the reply has another form than replies to the call: another program answers there, or a"
        + " proxy mixes replies; connect to the server itself");
  }

  /** Whether a reply fits the call of this function or command; {@code values}: the number that it asks for. */
  static boolean fits(String name, int values, Object reply) {
    if (reply instanceof JedisDataException error) {
      String message = String.valueOf(error.getMessage());
      boolean isOnRows = name.equals("read") || name.equals("scan");
      return !message.startsWith("TGSERVER") || message.startsWith("TGSERVER replica") || isOnRows && message.matches("(?s)TGSERVER \\w.*");
    }
    List<?> parts = reply instanceof List<?> list ? list : List.of();
    return switch (name) {
      case "lease", "release" -> reply instanceof Long;
      case "HGET" -> reply == null || reply instanceof byte[];
      case "HMGET", "read" -> parts.size() == values && areTexts(parts, true);
      case "pointer" -> (parts.size() == 8 || parts.size() == 9) && areTexts(parts, true); // with an entry, or without
      case "scan" -> parts.size() == 4 && areTexts(parts.subList(0, 2), false) && parts.get(2) instanceof Long
          && parts.get(3) instanceof List<?> rows && rows.size() % 2 == 0 && areTexts(rows, false);
      case "catalog" -> reply == parts && areTexts(parts, false);
      case "schemas" -> reply == parts && areTexts(parts, false) && parts.size() % 2 == 0;
      default -> reply == null || reply == parts; // XREAD
    };
  }

  private static boolean areTexts(List<?> parts, boolean orNull) {
    return parts.stream().allMatch(part -> part instanceof byte[] || part == null && orNull);
  }

  /** Read a reply: a text as bytes, a number, a list; an error in a list as its exception. Throws JedisDataException: it is an error. */
  static Object read(RedisInputStream in) {
    Object reply = read(in, LIST_MAX);
    if (reply instanceof JedisDataException error) {
      throw error;
    }
    return reply;
  }

  private static Object read(RedisInputStream in, int listMax) {
    char kind = (char) in.readByte();
    String line = in.readLine();
    try {
      return switch (kind) {
        case '+' -> Store.utf8(line);
        case '-' -> new JedisDataException(line.split(", with args beginning with", 2)[0]); // they may be a login
        case ':' -> Long.parseLong(line);
        case '$' -> text(in, length(line, TEXT_MAX));
        case '*' -> list(in, length(line, listMax), listMax / 2);
        default -> throw noReply();
      };
    } catch (NumberFormatException none) {
      throw noReply();
    }
  }

  private static int length(String line, int most) {
    int length = Integer.parseInt(line);
    if (length < -1 || length > most) {
      throw noReply();
    }
    return length;
  }

  private static byte[] text(RedisInputStream in, int length) {
    byte[] text = length < 0 ? null : new byte[length];
    for (int at = 0; at < length; ) {
      int count = in.read(text, at, length - at);
      if (count < 0) {
        throw new JedisConnectionException(new EOFException("the connection ended within a reply"));
      }
      at += count;
    }
    if (text != null && (in.readByte() != '\r' || in.readByte() != '\n')) {
      throw noReply();
    }
    return text;
  }

  private static List<Object> list(RedisInputStream in, int length, int listMax) {
    if (length < 0) {
      return null;
    }
    List<Object> list = new ArrayList<>(length);
    for (int left = length; left > 0; left--) {
      list.add(read(in, listMax));
    }
    return list;
  }
}
