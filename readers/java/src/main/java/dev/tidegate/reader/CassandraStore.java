package dev.tidegate.reader;

import com.datastax.oss.driver.api.core.AllNodesFailedException;
import com.datastax.oss.driver.api.core.ConsistencyLevel;
import com.datastax.oss.driver.api.core.CqlIdentifier;
import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.CqlSessionBuilder;
import com.datastax.oss.driver.api.core.DefaultConsistencyLevel;
import com.datastax.oss.driver.api.core.DriverException;
import com.datastax.oss.driver.api.core.InvalidKeyspaceException;
import com.datastax.oss.driver.api.core.auth.AuthenticationException;
import com.datastax.oss.driver.api.core.config.DefaultDriverOption;
import com.datastax.oss.driver.api.core.config.DriverConfigLoader;
import com.datastax.oss.driver.api.core.cql.AsyncResultSet;
import com.datastax.oss.driver.api.core.cql.BoundStatement;
import com.datastax.oss.driver.api.core.cql.PreparedStatement;
import com.datastax.oss.driver.api.core.cql.Row;
import com.datastax.oss.driver.api.core.metadata.EndPoint;
import com.datastax.oss.driver.api.core.servererrors.QueryValidationException;
import com.datastax.oss.driver.api.core.servererrors.UnauthorizedException;
import com.datastax.oss.driver.api.core.ssl.SslEngineFactory;
import com.datastax.oss.driver.internal.core.loadbalancing.DcInferringLoadBalancingPolicy;
import dev.tidegate.reader.TidegateException.ConfigError;
import dev.tidegate.reader.TidegateException.CorruptError;
import dev.tidegate.reader.TidegateException.SnapshotExpiredError;
import dev.tidegate.reader.TidegateException.StoreLostError;
import dev.tidegate.reader.TidegateException.StoreUnavailableError;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLParameters;

/** Namespaces in a keyspace of Cassandra, read at a consistency that meets every write. */
final class CassandraStore implements Store {
  private static final Set<Integer> FORMATS = Set.of(1);
  private static final int REQUESTS_AT_ONCE = 64;
  private static final int GROUPS_AT_ONCE = 16;
  private static final int PAGE_ROWS = 500;
  private static final int POLL_MS = 50;
  private static final int PAUSE_MS = 10;
  private static final int PAUSE_MAX_MS = 1_000;
  private static final int LEASES_MAX = 4_000;
  private static final Duration LEASE_MAX = Duration.ofDays(1);
  private static final ConsistencyLevel SERIAL = DefaultConsistencyLevel.SERIAL;
  private static final Map<String, ConsistencyLevel> READ_AT = Map.of(
      "LOCAL_QUORUM", DefaultConsistencyLevel.LOCAL_QUORUM,
      "QUORUM", DefaultConsistencyLevel.QUORUM,
      "EACH_QUORUM", DefaultConsistencyLevel.LOCAL_QUORUM);

  private final String where;
  private final CqlSession session;
  private final Map<String, PreparedStatement> prepared = new ConcurrentHashMap<>();

  private CassandraStore(String where, CqlSession session) {
    this.where = where;
    this.session = session;
  }

  static Store open(StoreUrl url, Options options, Deadline deadline) {
    String where = "store " + url.shown();
    if (!url.path().matches("[A-Za-z][A-Za-z0-9_]{0,47}")) {
      throw new ConfigError(where + ": the path is no keyspace: write cassandra://host1,host2/keyspace");
    }
    return new CassandraStore(where, repeated(deadline, () -> session(where, url, options, deadline)));
  }

  private static CqlSession session(String where, StoreUrl url, Options options, Deadline deadline) {
    Duration request = options.timeout.dividedBy(3);
    CqlSessionBuilder builder = CqlSession.builder()
        .withKeyspace(CqlIdentifier.fromInternal(url.path().toLowerCase(Locale.ROOT)))
        .withConfigLoader(DriverConfigLoader.programmaticBuilder()
            .withDuration(DefaultDriverOption.REQUEST_TIMEOUT, request)
            .withDuration(DefaultDriverOption.CONNECTION_INIT_QUERY_TIMEOUT, request)
            .withDuration(DefaultDriverOption.CONNECTION_CONNECT_TIMEOUT, request)
            .withClass(DefaultDriverOption.LOAD_BALANCING_POLICY_CLASS, DcInferringLoadBalancingPolicy.class)
            .build());
    url.hosts().forEach(host -> builder.addContactPoint(new InetSocketAddress(host.name(), host.port() == 0 ? 9042 : host.port())));
    String password = options.password == null ? url.password() : options.password;
    if (password != null) {
      builder.withAuthCredentials(options.username == null ? url.user() : options.username, password);
    }
    if (options.localDatacenter != null) {
      builder.withLocalDatacenter(options.localDatacenter);
    }
    if (options.tls) {
      builder.withSslEngineFactory(new CheckedTls(StoreUrl.sslContext(options)));
    }
    CompletionStage<CqlSession> built;
    try {
      built = builder.buildAsync();
    } catch (RuntimeException failed) {
      throw error(where, failed);
    }
    try {
      return answer(where, built, deadline);
    } catch (StoreUnavailableError late) {
      built.thenAccept(CqlSession::closeAsync);
      throw late;
    }
  }

  /** TLS to nodes whose certificate has the host's name or address: as it is written or announced, never as DNS names it. */
  record CheckedTls(SSLContext context) implements SslEngineFactory {
    @Override
    public SSLEngine newSslEngine(EndPoint node) {
      InetSocketAddress address = (InetSocketAddress) node.resolve();
      SSLEngine engine = context.createSSLEngine(address.getHostString(), address.getPort());
      SSLParameters parameters = engine.getSSLParameters();
      parameters.setEndpointIdentificationAlgorithm("HTTPS");
      engine.setSSLParameters(parameters);
      engine.setUseClientMode(true);
      return engine;
    }

    @Override
    public void close() {}
  }

  // -- errors ------------------------------------------------------------------------------------

  private static TidegateException error(String where, Throwable failed) {
    if (failed instanceof AllNodesFailedException all) {
      for (List<Throwable> errors : all.getAllErrors().values()) {
        for (Throwable each : errors) {
          if (refusesLogin(each) || each instanceof QueryValidationException || each instanceof InvalidKeyspaceException) {
            return error(where, each);
          }
        }
      }
    }
    if (refusesLogin(failed) || failed instanceof UnauthorizedException) {
      return new ConfigError(where + " refuses this user: " + failed.getMessage(), failed, true);
    }
    if (failed instanceof QueryValidationException || failed instanceof InvalidKeyspaceException
        || failed instanceof IllegalStateException || failed instanceof IllegalArgumentException) {
      return new ConfigError(where + " has not the tables of tidegate, or cannot be used: " + failed.getMessage(), failed, false);
    }
    return new StoreUnavailableError(where + ": no answer: " + failed, failed, false);
  }

  /** Whether a node refuses this user. One that could not read its users, as while others start, proves nothing. */
  private static boolean refusesLogin(Throwable failed) {
    return failed instanceof AuthenticationException && !String.valueOf(failed.getMessage()).contains("Unable to perform authentication");
  }

  /** Call until there is an answer or an error that no repetition mends, or to the deadline. */
  private static <T> T repeated(Deadline deadline, Supplier<T> call) {
    for (int pause = PAUSE_MS; ; pause = Math.min(2 * pause, PAUSE_MAX_MS)) {
      try {
        return call.get();
      } catch (StoreUnavailableError away) {
        if (deadline.leftMillis() <= pause) {
          throw away;
        }
        deadline.pause(pause);
      }
    }
  }

  private static <T> T answer(String where, CompletionStage<T> sent, Deadline deadline) {
    try {
      return sent.toCompletableFuture().get(Math.max(1, deadline.leftMillis()), TimeUnit.MILLISECONDS);
    } catch (ExecutionException failed) {
      throw error(where, failed.getCause());
    } catch (TimeoutException late) {
      throw error(where, late);
    } catch (InterruptedException interrupted) {
      throw Deadline.interrupted(interrupted);
    }
  }

  @Override
  public String where() {
    return where;
  }

  @Override
  public void close() {
    session.close();
  }

  private record Statement(String cql, ConsistencyLevel level, Object... values) {}

  /** Its first use asks the store. */
  private BoundStatement bound(Statement statement, Deadline deadline) {
    PreparedStatement known = prepared.get(statement.cql);
    if (known == null) {
      known = answer(where, session.prepareAsync(statement.cql), deadline);
      prepared.put(statement.cql, known);
    }
    return known.bind(statement.values).setConsistencyLevel(statement.level).setSerialConsistencyLevel(SERIAL).setIdempotent(true);
  }

  /** Run statements side by side, and again while nodes are away; return all rows of each, in order. All are repeatable. */
  private List<List<Row>> run(List<Statement> statements, Deadline deadline) {
    return repeated(deadline, () -> {
      try {
        return once(statements, deadline);
      } catch (DriverException | IllegalStateException failed) {
        throw error(where, failed);
      }
    });
  }

  private List<List<Row>> once(List<Statement> statements, Deadline deadline) {
    List<List<Row>> results = new ArrayList<>();
    for (int from = 0; from < statements.size(); from += REQUESTS_AT_ONCE) {
      List<CompletionStage<AsyncResultSet>> sent = new ArrayList<>();
      for (Statement each : statements.subList(from, Math.min(from + REQUESTS_AT_ONCE, statements.size()))) {
        sent.add(session.executeAsync(bound(each, deadline)));
      }
      for (CompletionStage<AsyncResultSet> one : sent) {
        List<Row> rows = new ArrayList<>();
        AsyncResultSet page = answer(where, one, deadline);
        page.currentPage().forEach(rows::add);
        while (page.hasMorePages()) {
          page = answer(where, page.fetchNextPage(), deadline);
          page.currentPage().forEach(rows::add);
        }
        results.add(rows);
      }
    }
    return results;
  }

  private List<Row> rows(Deadline deadline, String cql, ConsistencyLevel level, Object... values) {
    return run(List.of(new Statement(cql, level, values)), deadline).get(0);
  }

  private Row named(String name, Deadline deadline) {
    List<Row> rows = rows(deadline, "SELECT space, identity, settings, state FROM tidegate_namespaces WHERE name = ?", SERIAL, name);
    return rows.isEmpty() ? null : rows.get(0);
  }

  @Override
  public Target alias(String name, Deadline deadline) {
    Row row = named(name, deadline);
    return row == null || !"alias".equals(row.getString("state")) ? null : Target.of(Store.utf8(row.getString("identity")));
  }

  @Override
  public Space space(String namespace, Deadline deadline) {
    Row row = named(namespace, deadline);
    if (row == null || !"here".equals(row.getString("state"))) {
      return null;
    }
    String place = where + ", namespace " + namespace;
    Identity identity = Identity.of(place, Store.utf8(row.getString("identity")), FORMATS);
    var settings = Schema.object(Store.utf8(row.getString("settings")), place + ": the settings");
    String writtenAt = settings.path("consistency").asText();
    ConsistencyLevel level = READ_AT.get(writtenAt);
    if (level == null) {
      throw new CorruptError(place + " is written at the consistency " + writtenAt + ", which this release does not know");
    }
    String here = rows(deadline, "SELECT data_center FROM system.local", DefaultConsistencyLevel.ONE).get(0).getString(0);
    if (writtenAt.equals("LOCAL_QUORUM") && !settings.path("dc").asText().equals(here)) {
      throw new ConfigError(place + " is written at LOCAL_QUORUM in data centre " + settings.path("dc").asText() + ", and this client is in "
          + here + ", where a version may be incomplete: read there");
    }
    return new CassandraSpace(identity, place, row.getUuid("space"), level, DefaultConsistencyLevel.valueOf(writtenAt));
  }

  private final class CassandraSpace implements Space {
    private final Identity identity;
    private final String place;
    private final UUID space;
    private final ConsistencyLevel level;
    private final ConsistencyLevel writeLevel;
    /** This process's leases in the store, by id: their ends are part of a row's key. */
    private final Map<String, Taken> taken = new ConcurrentHashMap<>();

    /** {@code at}: when the lease was first taken on the version. */
    private record Taken(long version, Instant at, Instant end) {}

    CassandraSpace(Identity identity, String place, UUID space, ConsistencyLevel level, ConsistencyLevel writeLevel) {
      this.identity = identity;
      this.place = place;
      this.space = space;
      this.level = level;
      this.writeLevel = writeLevel;
    }

    @Override
    public Identity identity() {
      return identity;
    }

    @Override
    public Pointer pointer(long known, Deadline deadline) {
      List<Row> rows = rows(deadline, "SELECT visible, digest, writer, horizon FROM tidegate_pointers WHERE space = ? LIMIT 1", level, space);
      if (rows.isEmpty() || rows.get(0).isNull("visible")) {
        throw gone(deadline);
      }
      Row row = rows.get(0);
      long visible = row.getLong("visible");
      long horizon = row.getLong("horizon");
      return new Pointer(visible, row.getString("digest"), row.getString("writer"), horizon, visible == 0 && horizon > 0, null);
    }

    /** The error of a namespace without a pointer: it was lost, or another one has its name by now. */
    private TidegateException gone(Deadline deadline) {
      Row row = named(identity.namespace(), deadline);
      if (row != null && "here".equals(row.getString("state"))
          && !Identity.of(place, Store.utf8(row.getString("identity")), FORMATS).uuid().equals(identity.uuid())) {
        return ConfigError.proven(place + ": the namespace was dropped while it was open here; connect again");
      }
      return new StoreLostError(place + ": the namespace is not there any more: it was dropped, or the store lost it: then `tidegate"
          + " recover` rebuilds it from the log");
    }

    @Override
    public Entry entry(long version, Deadline deadline) {
      List<Row> rows = rows(deadline, "SELECT entry FROM tidegate_pointers WHERE space = ? AND version = ?", level, space, version);
      return rows.isEmpty() ? null : Entry.of(place, Store.utf8(rows.get(0).getString("entry")));
    }

    @Override
    public Map<String, byte[]> schemas(Collection<String> ids, Deadline deadline) {
      Map<String, byte[]> schemas = new LinkedHashMap<>();
      for (Row row : rows(deadline, "SELECT schema_id, content FROM tidegate_schemas WHERE space = ?", level, space)) {
        if (ids.contains(row.getString("schema_id"))) {
          schemas.put(row.getString("schema_id"), Store.utf8(row.getString("content")));
        }
      }
      return schemas;
    }

    // -- rows ------------------------------------------------------------------------------------

    /** A row that is found is right. Where one is missing, the horizon tells whether the version was retired. */
    @Override
    public Answer read(long version, List<Lookup> lookups, boolean withPointer, Deadline deadline) {
      if (withPointer) {
        return null; // no round trip can be saved here
      }
      List<List<Row>> results = run(lookups.stream().map(of -> new Statement(
          "SELECT key, value FROM tidegate_rows WHERE space = ? AND tbl = ? AND kg = ? AND key IN ? AND version <= ? AND version >= ? GROUP BY key",
          level, space, of.table(), of.group(), of.keys().stream().map(ByteBuffer::wrap).toList(), version, of.at().start())).toList(), deadline);
      byte[][] values = new byte[Lookup.keys(lookups)][];
      for (int at = 0; at < results.size(); at++) {
        Map<ByteBuffer, byte[]> found = new HashMap<>();
        results.get(at).forEach(row -> found.put(row.getByteBuffer("key"), bytes(row, "value")));
        Lookup lookup = lookups.get(at);
        for (int key = 0; key < lookup.keys().size(); key++) {
          values[lookup.places().get(key)] = found.get(ByteBuffer.wrap(lookup.keys().get(key)));
        }
      }
      if (Arrays.asList(values).contains(null)) {
        checkKept(version, deadline);
      }
      return new Answer(null, Arrays.asList(values), null);
    }

    private void checkKept(long version, Deadline deadline) {
      SpaceReader.checkKept(place, version, pointer(0, deadline));
    }

    private static byte[] bytes(Row row, String column) {
      ByteBuffer buffer = row.getByteBuffer(column);
      byte[] bytes = new byte[buffer.remaining()];
      buffer.get(bytes);
      return bytes;
    }

    @Override
    public Pages scan(long version, String table, TableAt at) {
      return new Pages() {
        private final String head = "SELECT key, value FROM tidegate_rows WHERE space = ? AND tbl = ? AND kg = ? AND ";
        private final String tail = "version <= ? AND version >= ? GROUP BY key LIMIT ? ALLOW FILTERING";
        /** Key groups that are not read to their end, each with its last key, or none. */
        private final Deque<Map.Entry<Integer, Optional<ByteBuffer>>> open = new ArrayDeque<>();
        private int nextGroup;

        @Override
        public List<byte[][]> next(Deadline deadline) {
          while (open.size() < GROUPS_AT_ONCE && nextGroup < identity.keyGroups()) {
            open.add(Map.entry(nextGroup, Optional.empty()));
            nextGroup += at.stride();
          }
          if (open.isEmpty()) {
            return null;
          }
          List<Map.Entry<Integer, Optional<ByteBuffer>>> some = List.copyOf(open);
          List<List<Row>> pages = run(some.stream().map(group -> group.getValue().isEmpty()
              ? new Statement(head + tail, level, space, table, group.getKey(), version, at.start(), PAGE_ROWS)
              : new Statement(head + "key > ? AND " + tail, level, space, table, group.getKey(), group.getValue().get(), version, at.start(), PAGE_ROWS))
              .toList(), deadline);
          checkKept(version, deadline); // rows that the pages lack may have been retired
          open.clear();
          List<byte[][]> rows = new ArrayList<>();
          for (int of = 0; of < pages.size(); of++) {
            pages.get(of).forEach(row -> rows.add(new byte[][] {bytes(row, "key"), bytes(row, "value")}));
            if (pages.get(of).size() == PAGE_ROWS) {
              open.add(Map.entry(some.get(of).getKey(), Optional.of(pages.get(of).get(PAGE_ROWS - 1).getByteBuffer("key"))));
            }
          }
          return rows;
        }
      };
    }

    // -- leases and waiting ----------------------------------------------------------------------

    /** The lease is written first, then one conditional write checks the horizon and shows the lease to retirement. */
    @Override
    public void lease(String id, long version, long millis, Deadline deadline) {
      Instant now = rows(deadline, "SELECT toTimestamp(now()) FROM system.local", DefaultConsistencyLevel.ONE).get(0).getInstant(0);
      Taken before = taken.get(id);
      if (before == null && rows(deadline, "SELECT lease_id FROM tidegate_leases WHERE space = ? AND expires_at > ? AND expires_at <= ? LIMIT ?",
          level, space, now, now.plus(LEASE_MAX), LEASES_MAX).size() == LEASES_MAX) {
        throw Store.tooManyLeases(place, String.format(Locale.ROOT, "%,d", LEASES_MAX)); // of more the writer heeds none
      }
      Instant first = before != null && before.version == version && before.at.isBefore(now) ? before.at : now;
      Taken mine = new Taken(version, first, now.plusMillis(millis));
      rows(deadline, "INSERT INTO tidegate_leases (space, expires_at, lease_id, version, taken_at) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?",
          writeLevel, space, mine.end, id, version, mine.at, mine.end.toEpochMilli() * 1_000);
      taken.put(id, mine);
      Row marked = rows(deadline, "UPDATE tidegate_pointers SET leases_at = uuid() WHERE space = ? IF horizon <= ?", writeLevel, space, version).get(0);
      if (!marked.getBoolean("[applied]")) {
        release(id, deadline);
        checkKept(version, deadline);
        throw new SnapshotExpiredError(place + ": version " + version + " was retired");
      }
      if (before != null && !before.end.equals(mine.end)) {
        drop(id, before.end, deadline);
      }
    }

    private void drop(String id, Instant end, Deadline deadline) {
      rows(deadline, "DELETE FROM tidegate_leases USING TIMESTAMP ? WHERE space = ? AND expires_at = ? AND lease_id = ?", writeLevel,
          end.toEpochMilli() * 1_000, space, end, id);
    }

    @Override
    public void release(String id, Deadline deadline) {
      Taken mine = taken.remove(id);
      if (mine != null) {
        drop(id, mine.end, deadline);
      }
    }

    @Override
    public void awaitNewer(long version, Deadline deadline) {
      deadline.pause(POLL_MS);
    }
  }
}
