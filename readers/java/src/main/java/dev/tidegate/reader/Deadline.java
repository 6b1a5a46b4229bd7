package dev.tidegate.reader;

import java.time.Duration;
import java.util.concurrent.TimeUnit;

/** The end of a call, by the monotonic clock: all its requests and retries are over by then. */
record Deadline(long endNanos) {
  /** The timed form of a lock's or a semaphore's acquire. */
  interface Acquire {
    boolean within(long time, TimeUnit unit) throws InterruptedException;
  }

  static Deadline after(Duration time) {
    return new Deadline(System.nanoTime() + time.toNanos());
  }

  /** The end of a part of the call, which takes this time at most. */
  Deadline within(long millis) {
    return leftMillis() <= millis ? this : after(Duration.ofMillis(millis));
  }

  long leftMillis() {
    return Math.max(0, (endNanos - System.nanoTime()) / 1_000_000);
  }

  boolean isOver() {
    return System.nanoTime() - endNanos >= 0;
  }

  /** Acquire something; return whether it was there before the end. */
  boolean takes(Acquire acquire) {
    try {
      return !isOver() && acquire.within(leftMillis(), TimeUnit.MILLISECONDS);
    } catch (InterruptedException interrupted) {
      throw interrupted(interrupted);
    }
  }

  /** Sleep, but not past the end. */
  void pause(long millis) {
    try {
      Thread.sleep(Math.min(millis, leftMillis()));
    } catch (InterruptedException interrupted) {
      throw interrupted(interrupted);
    }
  }

  static TidegateException interrupted(InterruptedException interrupted) {
    Thread.currentThread().interrupt();
    return new TidegateException.StoreUnavailableError("the thread was interrupted while it waited", interrupted, false);
  }
}
