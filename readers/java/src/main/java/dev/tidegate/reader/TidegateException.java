package dev.tidegate.reader;

/**
 * Root of the errors that this library raises on purpose. Each class states what is proven when it is thrown, and what
 * to do. The simple name of the class is the name of the error in every language that tidegate is read from.
 */
public abstract class TidegateException extends RuntimeException {
  private static final long serialVersionUID = 1;

  /** Whether the store refused a write of this reader (a lease) and still takes reads, also for too many leases. */
  final boolean writesRefused;
  private boolean isFinal;

  TidegateException(String message, Throwable cause, boolean writesRefused) {
    super(message, cause);
    this.writesRefused = writesRefused;
  }

  /** Whether it is proven that a call never succeeds on this gate. Any other error passes: a wait continues. */
  boolean isFinal() {
    return isFinal || this instanceof VersionRegressedError || this instanceof CorruptError || this instanceof StoreRemovedError;
  }

  /** The error's name, as in {@code "SnapshotExpiredError"}. */
  public String name() {
    return getClass().getSimpleName();
  }

  /** A URL, an option, a table or a key that does not fit. Do: correct the call that the message names. */
  public static final class ConfigError extends TidegateException {
    ConfigError(String message) {
      this(message, null, false);
    }

    ConfigError(String message, Throwable cause, boolean writesRefused) {
      super(message, cause, writesRefused);
    }

    /** An error of this gate that no later call is without. */
    static ConfigError proven(String message) {
      ConfigError error = new ConfigError(message);
      ((TidegateException) error).isFinal = true;
      return error;
    }
  }

  /** The store did not answer before the call's deadline. Do: read again. */
  public static final class StoreUnavailableError extends TidegateException {
    StoreUnavailableError(String message, Throwable cause, boolean writesRefused) {
      super(message, cause, writesRefused);
    }
  }

  /**
   * A server restarted or was promoted and was not compared with the log yet, lost rows, or is being filled. Do: read
   * again; the writer or {@code tidegate repair} compares it.
   */
  public static final class StoreNotVerifiedError extends TidegateException {
    StoreNotVerifiedError(String message) {
      super(message, null, false);
    }
  }

  /** The version was retired, or the snapshot's lease ran out or was revoked. Do: take a new snapshot. */
  public static final class SnapshotExpiredError extends TidegateException {
    SnapshotExpiredError(String message) {
      super(message, null, false);
    }
  }

  /**
   * The store shows an older version than this gate has seen, or the same one with other content. Do: find out what
   * replaced the store; connect again to accept the older version knowingly.
   */
  public static final class VersionRegressedError extends TidegateException {
    VersionRegressedError(String message) {
      super(message, null, false);
    }
  }

  /** Stored bytes do not fit their format or their schema. Do: restore that part of the store from a copy. */
  public static final class CorruptError extends TidegateException {
    CorruptError(String message) {
      this(message, null);
    }

    CorruptError(String message, Throwable cause) {
      super(message, cause, false);
    }
  }

  /** The namespace was in the store and is not there any more. Do: {@code tidegate recover}, if nobody dropped it. */
  public static final class StoreLostError extends TidegateException {
    StoreLostError(String message) {
      super(message, null, false);
    }
  }

  /**
   * The store was removed from the namespace: no later version becomes visible there. Do: connect to the successor, or
   * set {@link Options#followRedirects}.
   */
  public static final class StoreRemovedError extends TidegateException {
    private final String successor;

    StoreRemovedError(String message, String successor) {
      super(message, null, false);
      this.successor = successor;
    }

    /** The URL of the store to read instead, without login; empty if the note names none. */
    public String successor() {
      return successor;
    }
  }

  /** The awaited version did not become visible in time. Do: wait longer, or check that a writer is running. */
  public static final class WaitTimeoutError extends TidegateException {
    WaitTimeoutError(String message) {
      super(message, null, false);
    }
  }
}
