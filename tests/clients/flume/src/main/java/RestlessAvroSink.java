import org.apache.flume.EventDeliveryException;
import org.apache.flume.sink.AvroSink;

/**
 * Flume's Avro sink with a shorter pause: Flume's runner pauses for 5 s after a failure, which is not configurable. This one
 * retries after a tenth of a second, so that a test meets it at work more often. It sends the same events.
 */
public class RestlessAvroSink extends AvroSink {
  private static final long REST_MS = 100;

  @Override
  public Status process() throws EventDeliveryException {
    try {
      return super.process();
    } catch (EventDeliveryException failed) {
      try {
        Thread.sleep(REST_MS);
      } catch (InterruptedException ended) {
        Thread.currentThread().interrupt();
      }
      return Status.READY;
    }
  }
}
