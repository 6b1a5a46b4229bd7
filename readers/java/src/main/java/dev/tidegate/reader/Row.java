package dev.tidegate.reader;

import dev.tidegate.reader.TidegateException.ConfigError;
import java.math.BigDecimal;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.util.Collections;
import java.util.List;
import java.util.Map;

/**
 * A row's value, or a struct within one: its columns by name. Immutable.
 *
 * <p>A getter returns null for a null, and throws {@link ConfigError} for a column that the row does not have or that is
 * of another type. Spark's types are: string, char, varchar and intervals {@code String}; tinyint, smallint and int
 * {@code Integer}; bigint {@code Long}; float {@code Float}; double {@code Double}; decimal {@code BigDecimal} with the
 * column's scale; boolean {@code Boolean}; binary {@code byte[]}; date {@code LocalDate}; timestamp {@code Instant};
 * timestamp_ntz {@code LocalDateTime}; array {@code List}; map {@code Map}; struct {@code Row}.
 */
public final class Row {
  private final Map<String, Object> columns;
  private final int stateVersion;
  private final boolean isBytes;

  Row(Map<String, Object> columns, int stateVersion, boolean isBytes) {
    this.columns = Collections.unmodifiableMap(columns);
    this.stateVersion = stateVersion;
    this.isBytes = isBytes;
  }

  /** All columns by name. */
  public Map<String, Object> asMap() {
    return columns;
  }

  /** The version of the state that wrote the row: below the table's, its columns are those of that version. */
  public int stateVersion() {
    return stateVersion;
  }

  /** Whether the row is of a table whose values are bytes: it has one column, a {@code byte[]}. */
  public boolean isBytes() {
    return isBytes;
  }

  /** A column as a value of this class. */
  public <T> T get(String column, Class<T> type) {
    Object value = columns.get(column);
    if (value == null && !columns.containsKey(column)) {
      throw new ConfigError("the row has no column " + column + ", it has " + columns.keySet());
    }
    if (value != null && !type.isInstance(value)) {
      throw new ConfigError("column " + column + " is a " + value.getClass().getSimpleName() + ", not a " + type.getSimpleName());
    }
    return type.cast(value);
  }

  public boolean isNull(String column) {
    return get(column, Object.class) == null;
  }

  public String getString(String column) {
    return get(column, String.class);
  }

  public Integer getInt(String column) {
    return get(column, Integer.class);
  }

  /** A bigint, or a smaller whole number. */
  public Long getLong(String column) {
    Object value = get(column, Object.class);
    return value instanceof Integer small ? Long.valueOf(small) : get(column, Long.class);
  }

  public Float getFloat(String column) {
    return get(column, Float.class);
  }

  public Double getDouble(String column) {
    return get(column, Double.class);
  }

  public Boolean getBoolean(String column) {
    return get(column, Boolean.class);
  }

  public BigDecimal getDecimal(String column) {
    return get(column, BigDecimal.class);
  }

  public LocalDate getDate(String column) {
    return get(column, LocalDate.class);
  }

  public Instant getInstant(String column) {
    return get(column, Instant.class);
  }

  public LocalDateTime getLocalDateTime(String column) {
    return get(column, LocalDateTime.class);
  }

  /** A copy of the bytes. */
  public byte[] getBytes(String column) {
    byte[] bytes = get(column, byte[].class);
    return bytes == null ? null : bytes.clone();
  }

  public List<?> getList(String column) {
    return get(column, List.class);
  }

  public Map<?, ?> getMap(String column) {
    return get(column, Map.class);
  }

  public Row getStruct(String column) {
    return get(column, Row.class);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Row row && columns.equals(row.columns) && stateVersion == row.stateVersion;
  }

  @Override
  public int hashCode() {
    return columns.hashCode();
  }

  @Override
  public String toString() {
    return columns.toString();
  }
}
