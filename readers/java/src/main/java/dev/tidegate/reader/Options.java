package dev.tidegate.reader;

import java.nio.file.Path;
import java.time.Duration;
import java.util.HashSet;
import java.util.Set;
import javax.net.ssl.SSLContext;

/** How to connect. Each setter returns these options, so calls can be chained. */
public final class Options {
  Duration timeout = Duration.ofSeconds(10);
  String username;
  String password;
  String sentinelUsername;
  String sentinelPassword;
  Path caFile;
  SSLContext sslContext;
  boolean tls;
  Set<StoreUrl.Host> followRedirects; // null: none are followed
  int connections = 8;
  String localDatacenter;
  boolean leases = true;

  /** The time within which each call answers or fails, with all its retries; 10 s unless set. */
  public Options timeout(Duration time) {
    if (time.isNegative() || time.isZero() || time.compareTo(Duration.ofHours(1)) > 0) {
      throw new TidegateException.ConfigError("timeout is " + time + "; it must be above 0, one hour at most");
    }
    timeout = time;
    return this;
  }

  /** The login, in place of one in the URL. {@code user} may be null: Redis's default user. */
  public Options login(String user, String secret) {
    username = user;
    password = secret;
    return this;
  }

  /** The login at the Sentinels themselves. */
  public Options sentinelLogin(String user, String secret) {
    sentinelUsername = user;
    sentinelPassword = secret;
    return this;
  }

  /** A PEM file of the certificate authorities to trust, in place of Java's own; for rediss:// and Cassandra with TLS. */
  public Options caFile(Path pem) {
    caFile = pem;
    tls = true;
    return this;
  }

  /** A context for TLS, for example with a certificate of this client. */
  public Options sslContext(SSLContext context) {
    sslContext = context;
    tls = true;
    return this;
  }

  /**
   * Continue at the successor that a removed store names, if its servers are these, as {@code host:port}, or those of the
   * gate's URL. They get this login. Another user of the store may have written that name.
   */
  public Options followRedirects(String... servers) {
    Set<StoreUrl.Host> named = new HashSet<>();
    for (String server : servers) {
      named.add(StoreUrl.server(server));
    }
    followRedirects = Set.copyOf(named);
    return this;
  }

  /** The most connections to each Redis server; 8 unless set. Each thread in {@link Gate#waitFor} has one more. */
  public Options connections(int most) {
    if (most < 1) {
      throw new TidegateException.ConfigError("connections is " + most + "; it must be 1 or more");
    }
    connections = most;
    return this;
  }

  /** Cassandra's data centre of this reader; that of the URL's hosts unless set. */
  public Options localDatacenter(String name) {
    localDatacenter = name;
    return this;
  }

  /** Whether snapshots take leases, which are writes; without them nothing holds their version. */
  public Options leases(boolean take) {
    leases = take;
    return this;
  }
}
