package dev.tidegate.reader;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.Socket;
import java.net.SocketException;
import java.net.SocketTimeoutException;
import java.util.Deque;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.Semaphore;
import java.util.function.IntFunction;
import javax.net.ssl.SSLSocket;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.DefaultJedisSocketFactory;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.util.RedisInputStream;

/** A primary, and the connections to it: a call borrows one, or waits for one, until its deadline. */
final class RedisNode implements AutoCloseable {
  /**
   * The age at which a connection is not used again: its name may lead to another server by now, while the old one still
   * answers.
   */
  private static final long AGE_MAX_NANOS = 15_000_000_000L;

  /**
   * A socket whose reads together end at the deadline, however many packets a reply comes in: the time-out of a socket
   * begins again with each byte that arrives.
   */
  private static final class LimitedSocket extends Socket {
    private final Socket socket;
    /** That one, or the one under its TLS. */
    private final Socket plain;
    private Deadline deadline;

    LimitedSocket(Socket socket, Socket plain, Deadline deadline) {
      this.socket = socket;
      this.plain = plain;
      this.deadline = deadline;
    }

    @Override
    public InputStream getInputStream() throws IOException {
      InputStream in = socket.getInputStream();
      return new InputStream() {
        @Override
        public int read() throws IOException {
          limit();
          return in.read();
        }

        @Override
        public int read(byte[] into, int offset, int length) throws IOException {
          limit();
          return in.read(into, offset, length);
        }

        @Override
        public int available() throws IOException {
          return Math.max(in.available(), plain.getInputStream().available());
        }
      };
    }

    private void limit() throws IOException {
      if (deadline.isOver()) {
        throw new SocketTimeoutException("no time is left for a reply");
      }
      socket.setSoTimeout(millis(deadline));
    }

    @Override
    public OutputStream getOutputStream() throws IOException {
      return socket.getOutputStream();
    }

    @Override
    public int getSoTimeout() throws SocketException {
      return socket.getSoTimeout();
    }

    @Override
    public void setSoTimeout(int millis) throws SocketException {
      socket.setSoTimeout(millis);
    }

    @Override
    public boolean isBound() {
      return socket.isBound();
    }

    @Override
    public boolean isConnected() {
      return socket.isConnected();
    }

    @Override
    public boolean isClosed() {
      return socket.isClosed();
    }

    @Override
    public boolean isInputShutdown() {
      return socket.isInputShutdown();
    }

    @Override
    public boolean isOutputShutdown() {
      return socket.isOutputShutdown();
    }

    @Override
    public void close() throws IOException {
      socket.close();
    }
  }

  /** Makes the one socket of a connection. */
  private static final class Sockets extends DefaultJedisSocketFactory {
    private final JedisClientConfig config;
    private Deadline deadline;
    private LimitedSocket made;

    Sockets(HostAndPort address, JedisClientConfig config, Deadline deadline) {
      super(address, DefaultJedisClientConfig.builder().timeoutMillis(config.getConnectionTimeoutMillis()).build());
      this.config = config;
      this.deadline = deadline;
    }

    @Override
    public Socket createSocket() {
      Socket plain = super.createSocket();
      made = new LimitedSocket(plain, plain, deadline); // for the login: what the connect has left
      if (config.isSsl()) {
        try {
          SSLSocket secure = (SSLSocket) config.getSslSocketFactory().createSocket(
              plain, getHostAndPort().getHost(), getHostAndPort().getPort(), true);
          secure.setSSLParameters(config.getSslParameters());
          made = new LimitedSocket(secure, plain, deadline);
        } catch (IOException failed) {
          throw new JedisConnectionException(failed);
        }
      }
      return made;
    }

    /** Begin the time of the next replies. */
    void limit(Deadline next) {
      deadline = next;
      if (made != null) {
        made.deadline = next;
      }
    }
  }

  /** A connection whose commands can be sent before their replies are read. */
  static final class Pipe extends Connection {
    private final long openedAt = System.nanoTime();
    private final Sockets sockets;
    private RedisInputStream replies; // the login has set it, too

    /** Connect and log in. {@code config} has the time for it in milliseconds. */
    Pipe(HostAndPort address, IntFunction<JedisClientConfig> config, Deadline deadline) {
      this(address, config.apply(millis(deadline)), deadline);
    }

    private Pipe(HostAndPort address, JedisClientConfig config, Deadline deadline) {
      this(new Sockets(address, config, deadline), config);
    }

    private Pipe(Sockets sockets, JedisClientConfig config) {
      super(sockets, config);
      this.sockets = sockets;
    }

    /** Send. Of a connection that has ended this is no error: the next reply is the server's last words, or the end. */
    void send() {
      try {
        flush();
      } catch (JedisConnectionException ended) {
        // which the next read finds
      }
    }

    /** Read one reply. Throws JedisConnectionException: it did not arrive before the deadline. */
    Object reply(Deadline deadline) {
      sockets.limit(deadline);
      return getOne();
    }

    @Override
    protected Object protocolRead(RedisInputStream in) {
      replies = in;
      return RedisForms.read(in);
    }

    /** Whether something arrived that no call waits for: a reply, which would answer the next one. */
    boolean hasSurplus() {
      try {
        return replies != null && replies.available() > 0;
      } catch (IOException ended) {
        return true;
      }
    }
  }

  final HostAndPort address;
  /** Its replication id, as it last said; empty before. */
  volatile String id = "";
  private final IntFunction<JedisClientConfig> config;
  private final Semaphore permits;
  private final Deque<Pipe> idle = new ConcurrentLinkedDeque<>();
  private volatile boolean isClosed;
  private volatile long leftAt = System.nanoTime() - AGE_MAX_NANOS;

  /** {@code connections}: the most at a time. */
  RedisNode(HostAndPort address, IntFunction<JedisClientConfig> config, int connections) {
    this.address = address;
    this.config = config;
    permits = new Semaphore(connections);
  }

  private static int millis(Deadline deadline) {
    return (int) Math.max(1, Math.min(deadline.leftMillis(), Integer.MAX_VALUE));
  }

  /** Throws JedisConnectionException: there is none by the deadline. JedisDataException: the server refuses the login. */
  Pipe borrow(Deadline deadline) {
    if (isClosed || !deadline.takes(permits::tryAcquire)) {
      throw new JedisConnectionException(address + (isClosed ? " is not used any more" : ": no connection was free in time"));
    }
    try {
      for (Pipe connection = idle.poll(); connection != null; connection = idle.poll()) {
        if (isUsable(connection) && !connection.hasSurplus()) {
          return connection;
        }
        connection.close();
      }
      return new Pipe(address, config, deadline);
    } catch (ClassCastException otherForm) { // of the reply to a login
      permits.release();
      throw RedisForms.noReply();
    } catch (RuntimeException | Error failed) {
      permits.release();
      throw failed;
    }
  }

  /** {@code whole}: all replies were read. Those that were not may still come, and must not answer the next call. */
  void giveBack(Pipe connection, boolean whole) {
    if (whole && isUsable(connection)) {
      idle.push(connection);
    } else {
      connection.close();
    }
    if (!whole || isClosed) {
      closeIdle();
    }
    permits.release();
  }

  /** Young, and opened after the server was left. */
  private boolean isUsable(Pipe connection) {
    return System.nanoTime() - connection.openedAt < AGE_MAX_NANOS && connection.openedAt - leftAt > 0;
  }

  /** Use no connection again that is open now: the server says that another one has replaced it. */
  void leave() {
    leftAt = System.nanoTime();
    id = "";
    closeIdle();
  }

  private void closeIdle() {
    for (Pipe connection = idle.poll(); connection != null; connection = idle.poll()) {
      connection.close();
    }
  }

  /** Close the connections; those that are lent, as they are given back. Repeatable. */
  @Override
  public void close() {
    isClosed = true;
    closeIdle();
  }
}
