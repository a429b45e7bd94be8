import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Map;
import org.komamitsu.fluency.EventTime;
import org.komamitsu.fluency.Fluency;
import org.komamitsu.fluency.fluentd.FluencyBuilderForFluentd;

/** Sends the records of a file with Fluency: ADDRESS VARIANT TAG RECORDS; VARIANT joins ack, seconds, file, heap, tls with "+". */
public class Send {
    public static void main(String[] args) throws Exception {
        String address = args[0], variant = args[1], tag = args[2];
        FluencyBuilderForFluentd builder = new FluencyBuilderForFluentd();
        builder.setAckResponseMode(variant.contains("ack"));
        builder.setJvmHeapBufferMode(variant.contains("heap"));
        builder.setSslEnabled(variant.contains("tls"));
        builder.setWaitUntilBufferFlushed(60);
        builder.setWaitUntilFlusherTerminated(60);
        if (variant.contains("file")) {
            builder.setFileBackupDir(Files.createTempDirectory("fluency").toString());
        }
        int colon = address.lastIndexOf(':');
        Fluency fluency = builder.build(address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)));
        ObjectMapper mapper = new ObjectMapper();
        for (String line : Files.readAllLines(Paths.get(args[3]))) {
            @SuppressWarnings("unchecked")
            Map<String, Object> record = mapper.readValue(line, Map.class);
            long seconds = 1700000000L + ((Number) record.get("n")).longValue();
            if (variant.contains("seconds")) {
                fluency.emit(tag, seconds, record);
            } else {
                fluency.emit(tag, EventTime.fromEpoch(seconds, 123456789), record);
            }
        }
        fluency.close();
        if (!fluency.waitUntilAllBufferFlushed(60) || !fluency.waitUntilFlusherTerminated(60)) {
            System.err.println("not everything was flushed");
            System.exit(1);
        }
        System.exit(0);
    }
}
