package dev.tidegate.reader;

import dev.tidegate.reader.TidegateException.CorruptError;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** The layout of a value in a store: one flags byte, and the parts that it announces. */
final class Stored {
  private Stored() {}

  /**
   * The value's bytes, null if the key is absent: there is no row, or it is deleted, or it had expired when the version
   * was decided. No clock counts.
   */
  static byte[] payload(byte[] stored, long decidedAtUs) {
    if (stored == null) {
      return null;
    }
    ByteBuffer rest = ByteBuffer.wrap(stored);
    char flags = rest.hasRemaining() ? (char) rest.get() : ' ';
    boolean expires = flags == 'e' || flags == 'x';
    boolean sequenced = flags == 's' || flags == 'x' || flags == 'd';
    boolean deleted = flags == '-' || flags == 'd';
    boolean known = flags == '+' || expires || sequenced || deleted;
    if (!known || (expires && rest.remaining() < 8)) {
      throw unknown(stored);
    }
    long expiryUs = expires ? rest.getLong() : Long.MAX_VALUE;
    if (sequenced) {
      int length = rest.hasRemaining() ? rest.get() & 0xFF : 256;
      if (length > rest.remaining()) {
        throw unknown(stored);
      }
      rest.position(rest.position() + length);
    }
    if (deleted && rest.hasRemaining()) {
      throw unknown(stored);
    }
    boolean absent = deleted || (expires && expiryUs <= decidedAtUs);
    return absent ? null : Arrays.copyOfRange(stored, rest.position(), stored.length);
  }

  private static CorruptError unknown(byte[] stored) {
    return new CorruptError("a stored value starts with " + shown(stored) + ": not a form that tidegate writes");
  }

  /** The start of some bytes, for messages. */
  static String shown(byte[] bytes) {
    String start = new String(bytes, 0, Math.min(bytes.length, 60), StandardCharsets.ISO_8859_1);
    StringBuilder text = new StringBuilder("'");
    start.chars().forEach(each -> text.append(each < ' ' || each > '~' ? String.format("\\x%02x", each) : String.valueOf((char) each)));
    return text.append(bytes.length > 60 ? "'... (" + bytes.length + " bytes)" : "'").toString();
  }
}
