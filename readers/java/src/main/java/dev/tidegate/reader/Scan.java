package dev.tidegate.reader;

import dev.tidegate.reader.TidegateException.CorruptError;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;

/**
 * All rows of a table at one version, in any order. It belongs to one thread. {@link #hasNext} reads the next page, and
 * throws what a read throws, then always: so a loop that ends has read every row. Close it if you leave it before its end.
 */
public final class Scan implements Iterator<Scan.Item>, Iterable<Scan.Item>, AutoCloseable {
  /** A row: the values of its key's columns, and its value. */
  public record Item(List<Object> key, Row row) {}

  private final Snapshot snapshot;
  private final String table;
  private final SpaceReader.Table at;
  private final Store.Pages pages;
  private final boolean isOwner;
  private final Deque<Item> items = new ArrayDeque<>();
  private boolean isDone;
  private RuntimeException failed;

  Scan(Snapshot snapshot, String table, SpaceReader.Table at, Store.Pages pages, boolean isOwner) {
    this.snapshot = snapshot;
    this.table = table;
    this.at = at;
    this.pages = pages;
    this.isOwner = isOwner;
  }

  /** The version that is read. */
  public long version() {
    return snapshot.version();
  }

  @Override
  public Iterator<Item> iterator() {
    return this;
  }

  @Override
  public boolean hasNext() {
    if (failed != null) {
      throw failed; // the rows that are left are not all
    }
    Deadline deadline = snapshot.deadline();
    try {
      while (items.isEmpty() && !isDone) {
        deadline = snapshot.deadline();
        fill(snapshot.read(deadline, pages::next));
      }
    } catch (RuntimeException error) {
      failed = error;
      close(deadline);
      throw error;
    }
    return !items.isEmpty();
  }

  private void fill(List<byte[][]> page) {
    if (page == null) {
      close();
      return;
    }
    for (byte[][] stored : page) {
      Row row = snapshot.row(at, table, Stored.shown(stored[0]), stored[1]);
      if (row != null) {
        items.add(new Item(keyOf(stored[0]), row));
      }
    }
  }

  private List<Object> keyOf(byte[] key) {
    try {
      return Keys.decode(key, at.schema().keyTypes);
    } catch (CorruptError unfit) {
      throw new CorruptError(snapshot.where(table) + ": " + unfit.getMessage(), unfit);
    }
  }

  @Override
  public Item next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    return items.remove();
  }

  /** End the scan, and release its lease. Repeatable. */
  @Override
  public void close() {
    close(snapshot.deadline());
  }

  private void close(Deadline deadline) {
    isDone = true;
    if (isOwner) {
      snapshot.close(deadline);
    }
  }
}
