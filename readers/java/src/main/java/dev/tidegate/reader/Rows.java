package dev.tidegate.reader;

import java.util.List;
import java.util.Map;

/**
 * Rows of some tables, all at one version.
 *
 * @param version the version
 * @param byTable the rows of each table, in the order in which its keys were asked for; null where a key is absent
 */
public record Rows(long version, Map<String, List<Row>> byTable) {
  /** The rows of a table, in the order of its keys; null where a key is absent. */
  public List<Row> of(String table) {
    return byTable.get(table);
  }
}
