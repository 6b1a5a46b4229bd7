package dev.tidegate.reader;

import java.time.Duration;

/** The end of a call, by the monotonic clock: all its requests and retries are over by then. */
record Deadline(long endNanos) {
  static Deadline after(Duration time) {
    return new Deadline(System.nanoTime() + time.toNanos());
  }

  long leftMillis() {
    return Math.max(0, (endNanos - System.nanoTime()) / 1_000_000);
  }

  boolean isOver() {
    return System.nanoTime() - endNanos >= 0;
  }

  /** Sleep, but not past the end. */
  void pause(long millis) {
    try {
      Thread.sleep(Math.min(millis, leftMillis()));
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new TidegateException.StoreUnavailableError("the thread was interrupted while it waited", interrupted, false);
    }
  }
}
