package dev.tidegate.reader;

import dev.tidegate.reader.TidegateException.ConfigError;
import java.io.IOException;
import java.io.InputStream;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** A store's URL: {@code scheme://[user:password@]host[:port][,host[:port]...][/path]}. */
record StoreUrl(String scheme, String user, String password, List<Host> hosts, String path) {
  record Host(String name, int port) {
    Host {
      if (port > 65_535) {
        throw new ConfigError("the port of a server is above 65535");
      }
    }
  }

  private static final Pattern FORM =
      Pattern.compile("([a-z][a-z+]*)://(?:([^@/?#]*)@)?([^@/?#]*)(?:/([^?#]*))?");
  private static final Pattern HOST = Pattern.compile("(\\[[0-9A-Fa-f:.]+]|[^:\\[\\],]+)(?::(\\d{1,5}))?");

  static StoreUrl of(String url) {
    Matcher parts = FORM.matcher(url);
    if (!parts.matches()) {
      throw new ConfigError("the store's URL has not the form scheme://host:port; options are not part of it");
    }
    String login = parts.group(2);
    int colon = login == null ? -1 : login.indexOf(':');
    if (login != null && colon < 0) {
      throw new ConfigError("the store's URL has a user or a password, which is ambiguous: write user:password@");
    }
    List<Host> hosts = new ArrayList<>();
    for (String host : parts.group(3).split(",")) {
      Matcher address = HOST.matcher(host);
      if (!address.matches()) {
        throw new ConfigError("the store's URL has no host, or one that cannot be read");
      }
      String port = address.group(2);
      hosts.add(new Host(address.group(1).replaceAll("[\\[\\]]", ""), port == null ? 0 : Integer.parseInt(port)));
    }
    String path = parts.group(4) == null ? "" : decoded(parts.group(4));
    return login == null
        ? new StoreUrl(parts.group(1), null, null, hosts, path)
        : new StoreUrl(
            parts.group(1), orNull(decoded(login.substring(0, colon))), decoded(login.substring(colon + 1)), hosts, path);
  }

  private static String orNull(String text) {
    return text.isEmpty() ? null : text;
  }

  private static String decoded(String text) {
    try {
      return URLDecoder.decode(text.replace("+", "%2B"), StandardCharsets.UTF_8);
    } catch (IllegalArgumentException wrong) { // it quotes the text
      throw new ConfigError("a % in the store's URL is not followed by two hexadecimal digits: write it as %25");
    }
  }

  /** The same login at another store. */
  StoreUrl at(StoreUrl other) {
    return new StoreUrl(other.scheme, user, password, other.hosts, other.path);
  }

  /** A server as {@code host:port}. */
  static Host server(String text) {
    Matcher address = HOST.matcher(text);
    if (!address.matches() || address.group(2) == null || address.group(1).matches(".*[@/?#\\s].*")) {
      throw new ConfigError("a server to follow to is not host:port, as in green:6379");
    }
    return new Host(plain(address.group(1)), Integer.parseInt(address.group(2)));
  }

  /** The servers that get the login, each with its port. */
  Set<Host> servers() {
    int port = scheme.endsWith("+sentinel") ? 26379 : scheme.equals("cassandra") ? 9042 : 6379;
    Set<Host> servers = new HashSet<>();
    hosts.forEach(host -> servers.add(new Host(plain(host.name), host.port == 0 ? port : host.port)));
    return servers;
  }

  private static String plain(String host) {
    return host.replaceAll("[\\[\\]]", "").toLowerCase(Locale.ROOT);
  }

  /** The URL without login, for messages. */
  String shown() {
    StringBuilder text = new StringBuilder(scheme).append("://");
    for (Host host : hosts) {
      text.append(host == hosts.get(0) ? "" : ",").append(host.name).append(host.port == 0 ? "" : ":" + host.port);
    }
    return text.append(path.isEmpty() ? "" : "/" + path).toString();
  }

  /** The context for TLS that the options ask for. */
  static SSLContext sslContext(Options options) {
    try {
      if (options.sslContext != null || options.caFile == null) {
        return options.sslContext != null ? options.sslContext : SSLContext.getDefault();
      }
      KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
      trusted.load(null, null);
      try (InputStream pem = Files.newInputStream(options.caFile)) {
        for (var certificate : CertificateFactory.getInstance("X.509").generateCertificates(pem)) {
          trusted.setCertificateEntry("ca-" + trusted.size(), certificate);
        }
      }
      TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
      trust.init(trusted);
      SSLContext context = SSLContext.getInstance("TLS");
      context.init(null, trust.getTrustManagers(), null);
      return context;
    } catch (IOException | GeneralSecurityException error) {
      throw new ConfigError("the file of certificates " + options.caFile + " cannot be used: " + error, error, false);
    }
  }
}
