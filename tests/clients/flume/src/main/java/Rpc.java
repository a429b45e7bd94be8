import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.flume.Event;
import org.apache.flume.api.RpcClient;
import org.apache.flume.api.RpcClientFactory;
import org.apache.flume.event.EventBuilder;

/**
 * Sends events with the RPC client of Flume's SDK: Rpc PORT VARIANT COUNT. VARIANT: append or batch, with +deflate behind it
 * if the connection is to be compressed. Event i has a body of (i * 7) % 997 bytes, of which byte j is (i * 31 + j * 17).
 */
public class Rpc {
  public static void main(String[] arguments) throws Exception {
    int count = Integer.parseInt(arguments[2]);
    Properties properties = new Properties();
    properties.setProperty("client.type", "default");
    properties.setProperty("hosts", "h");
    properties.setProperty("hosts.h", "127.0.0.1:" + arguments[0]);
    properties.setProperty("batch-size", "100");
    if (arguments[1].endsWith("+deflate")) {
      properties.setProperty("compression-type", "deflate");
    }
    RpcClient client = RpcClientFactory.getInstance(properties);
    List<Event> batch = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      Event event = event(i);
      if (arguments[1].startsWith("append")) {
        client.append(event);
        continue;
      }
      batch.add(event);
      if (batch.size() == 100 || i == count - 1) {
        client.appendBatch(batch);
        batch.clear();
      }
    }
    client.close();
    System.exit(0);
  }

  static Event event(int i) {
    byte[] body = new byte[(i * 7) % 997];
    for (int j = 0; j < body.length; j++) {
      body[j] = (byte) (i * 31 + j * 17);
    }
    Map<String, String> headers = new HashMap<>();
    headers.put("n", Integer.toString(i));
    headers.put("timestamp", Long.toString(1700000000123L + i));
    if (i % 3 == 0) {
      headers.put("message", "a header of that name");
      headers.put("f\u00fcr", "\u6f22\u5b57 \ud83e\udd80");
    }
    for (int more = 0; more < i % 20; more++) {
      headers.put("header" + more, "");
    }
    return EventBuilder.withBody(body, headers);
  }
}
