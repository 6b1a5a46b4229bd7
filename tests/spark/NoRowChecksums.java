import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkConf;
import org.apache.spark.TaskContext;
import org.apache.spark.scheduler.MapStatus;
import org.apache.spark.shuffle.ShuffleHandle;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;
import org.apache.spark.shuffle.sort.SortShuffleManager;
import scala.Option;
import scala.Product2;
import scala.collection.Iterator;

/** Spark's own shuffle, but its outputs have no checksum of their rows, as those of other managers. */
public class NoRowChecksums extends SortShuffleManager {
  public NoRowChecksums(SparkConf conf) {
    super(conf);
  }

  @Override
  public <K, V> ShuffleWriter<K, V> getWriter(
      ShuffleHandle handle, long mapId, TaskContext context, ShuffleWriteMetricsReporter metrics) {
    ShuffleWriter<K, V> writer = super.getWriter(handle, mapId, context, metrics);
    return new ShuffleWriter<K, V>() {
      @Override
      public void write(Iterator<Product2<K, V>> rows) throws java.io.IOException {
        writer.write(rows);
      }

      @Override
      public Option<MapStatus> stop(boolean success) {
        Option<MapStatus> status = writer.stop(success);
        if (status.isEmpty()) {
          return status;
        }
        return Option.apply(
            MapStatus.apply(status.get().location(), getPartitionLengths(), status.get().mapId(), 0L));
      }

      @Override
      public long[] getPartitionLengths() {
        return writer.getPartitionLengths();
      }
    };
  }
}
