package dev.tidegate.reader;

import dev.tidegate.reader.Store.Entry;
import dev.tidegate.reader.TidegateException.ConfigError;
import dev.tidegate.reader.TidegateException.SnapshotExpiredError;
import java.time.Duration;
import java.time.Instant;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Function;

/**
 * One version of a namespace. It gives the same answers while it is open, or throws {@link SnapshotExpiredError}: never a
 * mix of versions, and never "absent" for a row that was retired. A lease holds the version, which a thread of the gate
 * renews until {@link #close}. Thread-safe.
 */
public final class Snapshot implements AutoCloseable {
  private final SpaceReader reader;
  private final Entry entry;
  private final Lease lease;
  private final Options options;
  private volatile boolean isClosed;

  Snapshot(SpaceReader reader, Entry entry, Lease lease, Options options) {
    this.reader = reader;
    this.entry = entry;
    this.lease = lease;
    this.options = options;
  }

  /** The version. */
  public long version() {
    return entry.version();
  }

  /** The namespace's name: of an alias, that of the namespace that it named when the snapshot was taken. */
  public String namespace() {
    return reader.space.identity().namespace();
  }

  /** When the version was decided, by the writer's clock. */
  public Instant decidedAt() {
    return Type.instant(entry.decidedAtUs());
  }

  /** The names of the tables of this version, without those that only the writer uses. */
  public List<String> tables() {
    return entry.listed();
  }

  /** A table's columns. Throws ConfigError: there is no such table. */
  public Schema schema(String table) {
    return read(deadline -> reader.tables(entry, List.of(table), deadline).get(table).schema());
  }

  /** Read one row; {@code key} has a value for each key column. Empty: the key is absent. */
  public Optional<Row> get(String table, Object... key) {
    return Optional.ofNullable(getMany(Map.of(table, List.of(Arrays.asList(key)))).of(table).get(0));
  }

  /** Read the rows of many keys, each a list of the values of its columns, by table. */
  public Rows getMany(Map<String, ? extends List<? extends List<?>>> keys) {
    return read(deadline -> reader.at(entry, keys, deadline));
  }

  /** Read all rows of a table. Its pages have a deadline each. */
  public Scan scan(String table) {
    return scan(table, false, deadline());
  }

  /** {@code isOwner}: the scan's end closes this snapshot. */
  Scan scan(String table, boolean isOwner, Deadline deadline) {
    SpaceReader.Table at = read(deadline, within -> reader.tables(entry, List.of(table), within).get(table));
    return new Scan(this, table, at, reader.space.scan(entry.version(), table, at.at()), isOwner);
  }

  /** The deadline of a call that begins now. */
  Deadline deadline() {
    return Deadline.after(options.timeout);
  }

  <T> T read(Function<Deadline, T> call) {
    return read(deadline(), call);
  }

  <T> T read(Deadline deadline, Function<Deadline, T> call) {
    if (isClosed) {
      throw new ConfigError("this snapshot of version " + version() + " was closed: take a new one");
    }
    lease.check();
    try {
      T answer = call.apply(deadline);
      lease.check();
      return answer;
    } catch (SnapshotExpiredError retired) {
      lease.end(retired);
      throw retired;
    }
  }

  Row row(SpaceReader.Table at, String table, Object key, byte[] stored) {
    return reader.row(at, table, key, stored, entry);
  }

  String where(String table) {
    return reader.where + ", table " + table;
  }

  /** Release the lease. Repeatable. */
  @Override
  public void close() {
    close(deadline());
  }

  void close(Deadline deadline) {
    isClosed = true;
    lease.close(deadline);
  }

  static Duration checkedLease(Duration time) {
    if (time.isNegative() || time.toMillis() < 1 || time.compareTo(Duration.ofDays(1)) > 0) {
      throw new ConfigError("the time of a lease is " + time + "; it must be above 0, one day at most");
    }
    return time;
  }
}
