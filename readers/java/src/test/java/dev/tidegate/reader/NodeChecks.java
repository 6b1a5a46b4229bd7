package dev.tidegate.reader;

import static dev.tidegate.reader.Checks.check;
import static dev.tidegate.reader.Checks.made;
import static dev.tidegate.reader.Checks.raises;

import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.DefaultConsistencyLevel;
import com.datastax.oss.driver.api.core.NoNodeAvailableException;
import com.datastax.oss.driver.api.core.auth.AuthenticationException;
import com.datastax.oss.driver.api.core.cql.AsyncResultSet;
import com.datastax.oss.driver.api.core.cql.BoundStatement;
import com.datastax.oss.driver.api.core.cql.PreparedStatement;
import com.datastax.oss.driver.api.core.cql.Row;
import com.datastax.oss.driver.api.core.ssl.SslEngineFactory;
import com.datastax.oss.driver.internal.core.metadata.DefaultEndPoint;
import dev.tidegate.reader.Store.Identity;
import dev.tidegate.reader.Store.Lookup;
import dev.tidegate.reader.Store.Space;
import dev.tidegate.reader.Store.TableAt;
import dev.tidegate.reader.TidegateException.ConfigError;
import dev.tidegate.reader.TidegateException.StoreUnavailableError;
import java.lang.reflect.Proxy;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;

/** Checks of what no node of Cassandra shows on demand; {@link Checks} runs them. */
final class NodeChecks {
  private NodeChecks() {}

  static void all() throws Exception {
    certificates();
    statements();
    leases();
  }

  /** The name in a node's certificate is compared with the host as it is written or announced. */
  private static void certificates() throws Exception {
    SslEngineFactory tls = new CassandraStore.CheckedTls(SSLContext.getDefault());
    SSLEngine engine = tls.newSslEngine(new DefaultEndPoint(new InetSocketAddress("127.0.0.1", 9042)));
    check("HTTPS".equals(engine.getSSLParameters().getEndpointIdentificationAlgorithm()), "the name is not checked");
    check("127.0.0.1".equals(engine.getPeerHost()), "it is " + engine.getPeerHost() + " that is checked");
  }

  /** Cassandra, of which the next {@code failing} requests fail. */
  private static final class Nodes {
    RuntimeException failure = new NoNodeAvailableException();
    int failing;
    final List<List<Object>> inserted = new ArrayList<>();
    int leases;
    Instant now = Instant.EPOCH;
    final Space space = space();

    private Space space() {
      Object session = proxy(CqlSession.class, (method, given) -> {
        if (failing > 0) {
          failing--;
          return CompletableFuture.failedFuture(failure);
        }
        String cql = method.equals("prepareAsync") ? (String) given[0] : given[0].toString();
        if (method.equals("prepareAsync")) {
          return CompletableFuture.completedFuture(proxy(PreparedStatement.class, (bind, values) -> bound(cql, (Object[]) values[0])));
        }
        Row row = proxy(Row.class, (get, column) -> switch (get) {
          case "getInstant" -> now;
          case "getBoolean" -> true;
          case "isNull" -> false;
          case "getLong" -> 7L;
          default -> "";
        });
        List<Row> rows = Collections.nCopies(cql.startsWith("SELECT lease_id") ? leases : 1, row);
        return CompletableFuture.completedFuture(proxy(AsyncResultSet.class, (get, none) -> get.equals("currentPage") ? rows : false));
      });
      try {
        CassandraStore store = made(CassandraStore.class, "store", session);
        return (Space) made(Class.forName(CassandraStore.class.getName() + "$CassandraSpace"), store, new Identity("n", "uuid", 8),
            "store", UUID.randomUUID(), DefaultConsistencyLevel.QUORUM, DefaultConsistencyLevel.QUORUM);
      } catch (Exception failed) {
        throw new AssertionError(failed);
      }
    }

    private BoundStatement bound(String cql, Object[] values) {
      if (cql.startsWith("INSERT")) {
        inserted.add(List.of(values));
      }
      BoundStatement[] self = new BoundStatement[1];
      self[0] = proxy(BoundStatement.class, (method, given) -> method.equals("toString") ? cql : self[0]);
      return self[0];
    }
  }

  private interface Replies {
    Object of(String method, Object[] given);
  }

  private static <T> T proxy(Class<T> of, Replies answer) {
    return of.cast(Proxy.newProxyInstance(NodeChecks.class.getClassLoader(), new Class<?>[] {of}, (self, method, given) -> answer.of(method.getName(), given)));
  }

  /** Where Cassandra is away, each call repeats its requests until there is an answer or its deadline. */
  private static void statements() {
    Nodes nodes = new Nodes();
    Deadline later = Deadline.after(Duration.ofSeconds(10));
    Deadline soon = Deadline.after(Duration.ofMillis(100));
    TableAt at = new TableAt("id", 0, 1);
    nodes.failing = Integer.MAX_VALUE;
    raises(StoreUnavailableError.class, () -> nodes.space.pointer(0, soon));
    raises(StoreUnavailableError.class, () -> nodes.space.read(1, List.of(new Lookup("t", at, 0, List.of(Store.utf8("k")), List.of(0))), false, soon));
    raises(StoreUnavailableError.class, () -> nodes.space.scan(1, "t", at).next(soon));
    nodes.failing = 3;
    check(nodes.space.pointer(0, later).visible() == 7, "it was away for a moment");
    nodes.failure = new AuthenticationException(null, "Unable to perform authentication: Cannot achieve consistency level QUORUM");
    nodes.failing = 1;
    check(nodes.space.pointer(0, later).visible() == 7, "a node could not read its users for a moment");
    nodes.failure = new AuthenticationException(null, "Provided username or password are incorrect");
    nodes.failing = 1;
    raises(ConfigError.class, () -> nodes.space.pointer(0, later));
  }

  /** A renewal keeps the time at which its lease was taken, which max_lease_s counts from. Too many leases are refused. */
  private static void leases() {
    Nodes nodes = new Nodes();
    Deadline deadline = Deadline.after(Duration.ofSeconds(10));
    for (int second = 0; second < 3; second++) {
      nodes.now = Instant.EPOCH.plusSeconds(second);
      nodes.space.lease("a", 7, 60_000, deadline);
      nodes.leases = 4_000; // those that are held are renewed
    }
    List<Object> takenAt = nodes.inserted.stream().map(values -> values.get(4)).toList();
    check(takenAt.equals(Collections.nCopies(3, Instant.EPOCH)), "taken at " + takenAt);
    check(nodes.inserted.get(2).get(1).equals(Instant.EPOCH.plusSeconds(62)), "not renewed");
    nodes.space.lease("a", 8, 60_000, deadline);
    check(nodes.inserted.get(3).get(4).equals(nodes.now), "another version is held from now on");
    raises(StoreUnavailableError.class, () -> nodes.space.lease("b", 7, 60_000, deadline));
    check(nodes.inserted.size() == 4, "a lease was written above the limit");
  }
}
