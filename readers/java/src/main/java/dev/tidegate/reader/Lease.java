package dev.tidegate.reader;

import dev.tidegate.reader.Store.Space;
import dev.tidegate.reader.TidegateException.ConfigError;
import dev.tidegate.reader.TidegateException.SnapshotExpiredError;
import dev.tidegate.reader.TidegateException.VersionRegressedError;
import java.time.Duration;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/**
 * A lease on a version. It is renewed at a third of its time until it is closed. Its end is by this process's monotonic
 * clock, and never later than the store's: it counts from before the request that was answered.
 */
final class Lease {
  private static final System.Logger LOGGER = System.getLogger("dev.tidegate.reader");
  private static final int PER_LEASE = 3;
  private static final int RETRIES_PER_LEASE = 10;

  private final String id = UUID.randomUUID().toString();
  private final Duration time;
  private final Options options;
  private final ScheduledExecutorService renewals;
  private final Set<Lease> open;
  private Space space;
  private SpaceReader reader;
  private long version;
  private volatile long endNanos;
  private volatile SnapshotExpiredError ended;
  private boolean isTaken;
  private boolean isClosed;
  private boolean isWarned;
  private ScheduledFuture<?> next;

  /** {@code open}: the leases that its gate has to release; this one is among them until it has ended. */
  Lease(SpaceReader reader, Duration time, Options options, ScheduledExecutorService renewals, Set<Lease> open) {
    this.reader = reader;
    this.time = time;
    this.options = options;
    this.renewals = renewals;
    this.open = open;
    open.add(this);
  }

  /** Take the lease, and begin to renew it. Throws SnapshotExpiredError: the version was retired. */
  synchronized void take(Space of, long at, Deadline deadline) {
    if (isClosed) {
      throw ConfigError.proven("the gate to " + reader.where + " was closed: connect again");
    }
    space = of;
    version = at;
    long askedAt = System.nanoTime();
    request(deadline);
    endNanos = askedAt + time.toNanos();
    isTaken = true;
    schedule(time.toNanos() / PER_LEASE);
  }

  /** A store that refuses to write a lease is read without one, and the horizon is looked at in its place. */
  private void request(Deadline deadline) {
    TidegateException refusal = null;
    if (options.leases) {
      try {
        space.lease(id, version, time.toMillis(), deadline);
        isWarned = false;
        return;
      } catch (TidegateException refused) {
        if (!refused.writesRefused) {
          throw refused;
        }
        refusal = refused;
      }
    }
    reader.checkKept(version, space.pointer(0, deadline));
    if (refusal != null && !isWarned) {
      isWarned = true;
      LOGGER.log(System.Logger.Level.WARNING, "{0} is read without leases, since it gives none; a snapshot or scan ends with"
          + " SnapshotExpiredError once its version is retired: {1}", reader.where, refusal.getMessage());
    }
  }

  private void schedule(long nanos) {
    if (!isClosed && ended == null && !renewals.isShutdown()) {
      if (next != null) {
        next.cancel(false);
      }
      next = renewals.schedule(this::renew, nanos, TimeUnit.NANOSECONDS);
    }
  }

  private void renew() {
    synchronized (this) {
      if (isClosed) {
        return;
      }
    }
    long askedAt = System.nanoTime();
    if (askedAt - endNanos >= 0) {
      open.remove(this);
      return; // its reads are refused already, and stay so
    }
    try {
      request(new Deadline(Math.min(endNanos, askedAt + options.timeout.toNanos())));
      endNanos = askedAt + time.toNanos();
      synchronized (this) {
        if (!isClosed) {
          schedule(time.toNanos() / PER_LEASE);
          return;
        }
      }
      release(Deadline.after(options.timeout)); // this renewal may have taken effect after the release
    } catch (SnapshotExpiredError | VersionRegressedError revoked) { // it was retired, or the store went back
      open.remove(this);
      ended = new SnapshotExpiredError("the lease of this snapshot on version " + version + " was revoked: " + revoked.getMessage());
    } catch (RuntimeException unknown) { // it may have been renewed or not: the end stays, and the request is sent again
      LOGGER.log(System.Logger.Level.WARNING, "a lease on version " + version + " was not renewed, and is tried again", unknown);
      synchronized (this) {
        schedule(time.toNanos() / RETRIES_PER_LEASE);
      }
    }
  }

  /** Refuse reads once the lease may be gone; then always. */
  void check() {
    if (ended == null && System.nanoTime() - endNanos >= 0) {
      end(new SnapshotExpiredError("the lease of this snapshot on version " + version + " has run out: it was not renewed for "
          + time + ", because the store did not answer or this process stood still; take a new snapshot"));
    }
    if (ended != null) {
      throw ended;
    }
  }

  /** Note that the version is gone. */
  void end(SnapshotExpiredError error) {
    ended = error;
  }

  /** Renew it no more, and release it if the store answers by then; else it runs out by itself. Repeatable. */
  void close(Deadline deadline) {
    synchronized (this) {
      if (isClosed) {
        return;
      }
      isClosed = true;
      if (next != null) {
        next.cancel(false);
      }
    }
    open.remove(this);
    release(deadline);
  }

  private void release(Deadline deadline) {
    if (isTaken && options.leases) {
      try {
        space.release(id, deadline);
      } catch (TidegateException unanswered) {
        LOGGER.log(System.Logger.Level.DEBUG, "a lease was not released, it runs out by itself: {0}", unanswered.getMessage());
      }
    }
  }
}
