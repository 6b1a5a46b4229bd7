package dev.tidegate.reader;

import dev.tidegate.reader.Store.Entry;
import dev.tidegate.reader.Store.Pointer;
import dev.tidegate.reader.Store.Space;
import dev.tidegate.reader.Store.Target;
import dev.tidegate.reader.TidegateException.ConfigError;
import dev.tidegate.reader.TidegateException.StoreRemovedError;
import dev.tidegate.reader.TidegateException.StoreUnavailableError;
import dev.tidegate.reader.TidegateException.WaitTimeoutError;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Function;

/**
 * A client of one namespace in a store. Each read is of the newest version and of that alone; where several reads must fit
 * together, use {@link #getMany} or a {@link #snapshot()}. A gate remembers the newest version that it has seen, and never
 * goes back. Threads may share a gate. Every call ends within {@link Options#timeout}.
 */
public final class Gate implements AutoCloseable {
  private static final Duration LEASE = Duration.ofSeconds(60);
  private static final int HOPS_MAX = 4;
  private static final int PASS_MS = 50;
  private static final int SPACES_MAX = 100;

  private final String name;
  private final Options options;
  private final ScheduledThreadPoolExecutor renewals;
  private final Map<Target, SpaceReader> spaces = new LinkedHashMap<>();
  private final ReentrantLock moves = new ReentrantLock();
  /** The store, and those that were left, whose snapshots may still be open, by {@code where()}. */
  private final Map<String, Store> stores = new ConcurrentHashMap<>();
  private final Set<Lease> leases = ConcurrentHashMap.newKeySet();
  private final StoreUrl first;
  private StoreUrl url;
  private volatile Store store;
  private volatile SpaceReader own;
  private volatile boolean isAlias;
  private volatile boolean isClosed;

  /**
   * Open a gate to a namespace, or to an alias: then each call reads the namespace that the alias names as it begins.
   * Nothing is written.
   *
   * @param url redis://host:port/db, redis+cluster://host:port,host:port, redis+sentinel://host:port/NAME-OF-THE-PRIMARY,
   *     each with rediss for TLS, or cassandra://host,host/keyspace; a login is {@code user:password@}
   * @throws ConfigError the URL or an option does not fit, or there is no such namespace
   */
  public static Gate connect(String url, String namespace, Options options) {
    return new Gate(StoreUrl.of(url), namespace, options);
  }

  /** {@link #connect(String, String, Options)} with the default options. */
  public static Gate connect(String url, String namespace) {
    return connect(url, namespace, new Options());
  }

  private Gate(StoreUrl url, String name, Options options) {
    if (!name.matches("[A-Za-z0-9_.-]{1,64}")) {
      throw new ConfigError("the namespace's name is " + name + "; it must be 1 to 64 of A-Z a-z 0-9 _ . -");
    }
    this.first = url;
    this.url = url;
    this.name = name;
    this.options = options;
    renewals = new ScheduledThreadPoolExecutor(1, task -> {
      Thread thread = new Thread(task, "tidegate-leases");
      thread.setDaemon(true);
      return thread;
    });
    Deadline deadline = Deadline.after(options.timeout);
    store = Store.open(url, options, deadline);
    stores.put(store.where(), store);
    try {
      open(deadline);
    } catch (RuntimeException failed) {
      close();
      throw failed;
    }
  }

  private void open(Deadline deadline) {
    Space space = store.space(name, deadline);
    isAlias = space == null;
    if (space != null) {
      own = new SpaceReader(space, store.where());
      spaces.put(new Target(name, space.identity().uuid()), own);
      return;
    }
    if (store.alias(name, deadline) == null) {
      throw new ConfigError("there is no namespace " + name + " in " + store.where() + ": check both; its query makes it at its first"
          + " batch, `tidegate init` does so now, and `tidegate recover` rebuilds one that the store lost");
    }
    own = reader(deadline);
  }

  /** The reader of the namespace that counts now. */
  private SpaceReader reader(Deadline deadline) {
    if (isClosed) {
      throw ConfigError.proven("this gate to " + store.where() + " was closed: connect again");
    }
    if (!isAlias) {
      return own;
    }
    Store at = store;
    Target target = at.alias(name, deadline);
    if (target == null) {
      throw new ConfigError(at.where() + ": there is no alias " + name + " any more: set it again with `tidegate alias set`");
    }
    SpaceReader opened;
    synchronized (spaces) {
      opened = spaces.get(target);
    }
    if (opened == null) { // no lock is held: other calls need not wait for this one
      Space space = at.space(target.namespace(), deadline);
      if (space == null || !space.identity().uuid().equals(target.uuid())) {
        throw new ConfigError(at.where() + ": the alias " + name + " names namespace " + target.namespace() + " (" + target.uuid()
            + "), which is not here: set it again with `tidegate alias set`");
      }
      opened = new SpaceReader(space, at.where());
    }
    synchronized (spaces) {
      if (store != at) {
        return opened; // the gate has moved: this call learns it, too
      }
      SpaceReader known = spaces.remove(target); // another call may have opened it meanwhile
      known = known == null ? opened : known;
      if (spaces.size() == SPACES_MAX) {
        spaces.remove(spaces.keySet().iterator().next());
      }
      spaces.put(target, known);
      own = known;
      return known;
    }
  }

  /** Run a call in the namespace that counts now; if its store was removed and the options allow it, in the successor. */
  private <T> T call(Function<SpaceReader, T> call, Deadline deadline) {
    Set<String> passed = new HashSet<>();
    for (int hop = 0; ; hop++) {
      Store at = store;
      try {
        return call.apply(reader(deadline));
      } catch (StoreRemovedError removed) {
        if (options.followRedirects == null || removed.successor().isEmpty() || hop == HOPS_MAX) {
          throw removed;
        }
        passed.add(at.where());
        follow(at, removed, passed, deadline);
      }
    }
  }

  /** {@code passed}: the stores that this call has left; a later call may come back to them. */
  private void follow(Store removedStore, StoreRemovedError removed, Set<String> passed, Deadline deadline) {
    if (!deadline.takes(moves::tryLock)) {
      throw new StoreUnavailableError(removed.getMessage() + ", and that did not answer within " + options.timeout, removed, false);
    }
    try {
      if (store != removedStore) {
        return; // another thread has followed it
      }
      StoreUrl next = url.at(StoreUrl.of(removed.successor()));
      if (!next.scheme().equals(url.scheme()) || passed.contains("store " + next.shown())) {
        throw removed; // no other kind of server gets this login, and none twice
      }
      Set<StoreUrl.Host> trusted = new HashSet<>(options.followRedirects);
      trusted.addAll(first.servers()); // the note may be from a user with fewer rights than this login
      if (!trusted.containsAll(next.servers())) {
        throw new StoreRemovedError(removed.getMessage() + ", whose servers are not in followRedirects, so the login is not sent there:"
            + " if they are yours, add them, as host:port", removed.successor());
      }
      move(next, removed, deadline);
    } finally {
      moves.unlock();
    }
  }

  private void move(StoreUrl next, StoreRemovedError removed, Deadline deadline) {
    Store known = stores.get("store " + next.shown());
    Store successor = known == null ? Store.open(next, options, deadline) : known;
    try {
      SpaceReader before = own;
      Store.Identity identity = before.space.identity();
      Space space = successor.space(identity.namespace(), deadline);
      if (space == null || !space.identity().uuid().equals(identity.uuid())) {
        throw new ConfigError(removed.getMessage() + ", and that does not have this namespace: connect to the right store");
      }
      SpaceReader reader = new SpaceReader(space, successor.where());
      reader.remember(before.seen());
      synchronized (spaces) {
        spaces.clear();
        spaces.put(new Target(identity.namespace(), identity.uuid()), reader);
        own = reader;
        url = next;
        stores.put(successor.where(), successor);
        store = successor;
      }
    } catch (RuntimeException failed) {
      if (known == null) {
        successor.close();
      }
      throw failed;
    }
  }

  // -- reads at the newest version ---------------------------------------------------------------

  /** The namespace that was read last. */
  public String namespace() {
    return own.space.identity().namespace();
  }

  /** The namespace's uuid. */
  public String uuid() {
    return own.space.identity().uuid();
  }

  /** The visible version, 0 before the first batch. */
  public long version() {
    Deadline deadline = Deadline.after(options.timeout);
    return call(reader -> reader.pointer(deadline).visible(), deadline);
  }

  /** The names of the tables of the newest version, without those that only the writer uses; none before the first one. */
  public List<String> tables() {
    Deadline deadline = Deadline.after(options.timeout);
    return call(reader -> SpaceReader.again(() -> {
      Pointer pointer = reader.pointer(deadline);
      return pointer.visible() == 0 && !pointer.filling() ? List.<String>of() : reader.entryOf(pointer, deadline).listed();
    }), deadline);
  }

  /** A table's columns at the newest version. */
  public Schema schema(String table) {
    Deadline deadline = Deadline.after(options.timeout);
    return call(reader -> SpaceReader.again(
        () -> reader.tables(reader.entryOf(reader.pointer(deadline), deadline), List.of(table), deadline).get(table).schema()), deadline);
  }

  /**
   * Read one row at the newest version.
   *
   * @param key a value for each key column, of its type: String, byte[], Integer or Long, Boolean, LocalDate, Instant
   *     (timestamp), LocalDateTime (timestamp_ntz), BigDecimal
   * @return empty if the key is absent
   */
  public Optional<Row> get(String table, Object... key) {
    return Optional.ofNullable(getMany(Map.of(table, List.of(Arrays.asList(key)))).of(table).get(0));
  }

  /** Read the rows of many keys of some tables, all at one version; each key is a list of the values of its columns. */
  public Rows getMany(Map<String, ? extends List<? extends List<?>>> keys) {
    Deadline deadline = Deadline.after(options.timeout);
    return call(reader -> reader.newest(keys, deadline), deadline);
  }

  /**
   * Read all rows of a table at the newest version, under a lease that ends with the scan. The call reads up to the first
   * row, at a newer version if one was retired meanwhile. Its pages have a deadline each.
   */
  public Scan scan(String table) {
    return SpaceReader.again(() -> {
      Deadline deadline = Deadline.after(options.timeout);
      Snapshot snapshot = take(null, LEASE, deadline);
      try {
        Scan scan = snapshot.scan(table, true, deadline);
        scan.hasNext();
        return scan;
      } catch (RuntimeException failed) {
        snapshot.close(deadline);
        throw failed;
      }
    });
  }

  // -- snapshots and waiting ---------------------------------------------------------------------

  /** Take a snapshot of the newest version, with a lease of 60 s that is renewed until the snapshot is closed. */
  public Snapshot snapshot() {
    return snapshot(0, LEASE);
  }

  /** Take a snapshot of a version that is still kept. */
  public Snapshot snapshot(long version) {
    return snapshot(version, LEASE);
  }

  /**
   * Take a snapshot of a version, 0 for the newest.
   *
   * @param lease the time that the version stays readable after this process dies, and that the store may be away
   */
  public Snapshot snapshot(long version, Duration lease) {
    if (version < 0) {
      throw new ConfigError("version is " + version + "; it must be 1 or more, or 0 for the newest");
    }
    return take(version == 0 ? null : version, lease, Deadline.after(options.timeout));
  }

  private Snapshot take(Long version, Duration time, Deadline deadline) {
    Snapshot.checkedLease(time);
    return call(reader -> {
      Lease lease = new Lease(reader, time, options, renewals, leases);
      try {
        Entry entry = reader.pin(version, lease, deadline);
        return new Snapshot(reader, entry, lease, options);
      } catch (RuntimeException failed) {
        lease.close(deadline);
        throw failed;
      }
    }, deadline);
  }

  /**
   * Wait until a version is visible, in the namespace that counts when the call begins.
   *
   * @return the visible version, at least that one
   * @throws WaitTimeoutError it was not visible in time. Another error is that of the last look: one that passes by itself
   *     does not end the wait
   */
  public long waitFor(long version, Duration timeout) {
    if (version < 1) {
      throw new ConfigError("version is " + version + "; it must be 1 or more");
    }
    Deadline end = Deadline.after(timeout);
    while (true) {
      try {
        return call(reader -> waitIn(reader, version, timeout, end), Deadline.after(options.timeout));
      } catch (TidegateException error) { // an alias that cannot be read, or what it names
        pass(error, end);
      }
    }
  }

  /** Go on with a wait after an error that passes by itself, as of a login that is rotated. Throws it: it does not, or the wait is over. */
  private static void pass(TidegateException error, Deadline end) {
    if (error.isFinal() || error instanceof WaitTimeoutError || end.isOver() || Thread.currentThread().isInterrupted()) {
      throw error;
    }
    end.pause(PASS_MS);
  }

  private long waitIn(SpaceReader reader, long version, Duration timeout, Deadline end) {
    boolean hasLooked = false;
    while (true) {
      try {
        long visible = reader.pointer(Deadline.after(options.timeout)).visible();
        hasLooked = true;
        if (visible >= version) {
          return visible;
        }
        if (end.isOver()) {
          throw new WaitTimeoutError("version " + version + " of " + reader.where + " was not visible within " + timeout + ", the visible"
              + " version is " + visible + ": wait longer, or see with `tidegate status` whether a writer is running");
        }
        reader.space.awaitNewer(visible, end);
      } catch (TidegateException error) {
        if (!hasLooked) {
          throw error; // the alias may name another namespace by now
        }
        pass(error, end);
      }
    }
  }

  /**
   * End the snapshots and scans that are open, release their leases, the connections and the thread. Leases that the store
   * does not release within {@link Options#timeout} run out by themselves. Repeatable.
   */
  @Override
  public void close() {
    isClosed = true;
    Deadline deadline = Deadline.after(options.timeout);
    renewals.shutdownNow();
    try {
      renewals.awaitTermination(deadline.leftMillis(), java.util.concurrent.TimeUnit.MILLISECONDS);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
    try {
      for (Lease lease : leases) {
        if (deadline.isOver()) {
          break;
        }
        lease.close(deadline);
      }
    } finally {
      stores.values().forEach(Store::close);
    }
  }
}
