import java.io.BufferedOutputStream;
import java.io.File;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.avro.file.CodecFactory;
import org.apache.avro.Schema;
import org.apache.avro.file.DataFileReader;
import org.apache.avro.file.DataFileWriter;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;

/**
 * Avro's reader. `Events bodies DIRECTORY OUT`: writes the bodies of the events in each .avro file below DIRECTORY, one per line, to
 * a file in the directory OUT.
 * `Events show FILE`: prints the codec, the schema, and each event's headers (sorted by name) and body.
 * `Events write FILE CODEC SYNC`: writes two events with Flume's serializer and a sync marker of 16 letters.
 */
public class Events {
    static final String SCHEMA = "{\"type\":\"record\",\"name\":\"Event\",\"fields\":[{\"name\":\"headers\","
        + "\"type\":{\"type\":\"map\",\"values\":\"string\"}},{\"name\":\"body\",\"type\":\"bytes\"}]}";

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "bodies": bodies(Path.of(arguments[1]), Path.of(arguments[2])); break;
            case "show": show(new File(arguments[1])); break;
            case "write": write(new File(arguments[1]), arguments[2], arguments[3]); break;
            default: throw new IllegalArgumentException(arguments[0]);
        }
    }

    static void bodies(Path directory, Path out) throws Exception {
        List<Path> files;
        try (Stream<Path> walk = Files.walk(directory)) {
            files = walk.filter(path -> path.toString().endsWith(".avro")).collect(Collectors.toList());
        }
        Files.createDirectories(out);
        for (int n = 0; n < files.size(); n++) {
            Path lines = out.resolve(n + ".txt");
            try (OutputStream stream = new BufferedOutputStream(Files.newOutputStream(lines));
                    DataFileReader<GenericRecord> reader = open(files.get(n).toFile())) {
                GenericRecord event = null;
                while (reader.hasNext()) {
                    event = reader.next(event);
                    stream.write(body(event));
                    stream.write('\n');
                }
            }
        }
        System.out.println(files.size() + " files");
    }

    static void show(File file) throws Exception {
        try (DataFileReader<GenericRecord> reader = open(file)) {
            System.out.println("codec " + reader.getMetaString("avro.codec"));
            System.out.println("schema " + reader.getMetaString("avro.schema"));
            while (reader.hasNext()) {
                GenericRecord event = reader.next();
                Map<String, String> headers = new TreeMap<>();
                ((Map<?, ?>) event.get("headers")).forEach((key, value) -> headers.put(key.toString(), value.toString()));
                System.out.println(headers + " " + new String(body(event), "UTF-8"));
            }
        }
    }

    static void write(File file, String codec, String sync) throws Exception {
        Schema schema = new Schema.Parser().parse(SCHEMA);
        try (DataFileWriter<GenericRecord> writer = new DataFileWriter<>(new GenericDatumWriter<>(schema))) {
            writer.setSyncInterval(2048000);
            writer.setCodec(CodecFactory.fromString(codec));
            writer.create(schema, Files.newOutputStream(file.toPath()), sync.getBytes("UTF-8"));
            for (String text : new String[] {"first", "second"}) {
                GenericRecord event = new GenericData.Record(schema);
                event.put("headers", text.equals("first") ? Map.of("host", "a") : Map.of());
                event.put("body", ByteBuffer.wrap(text.getBytes("UTF-8")));
                writer.append(event);
                writer.sync();
            }
        }
    }

    static DataFileReader<GenericRecord> open(File file) throws Exception {
        return new DataFileReader<>(file, new GenericDatumReader<>());
    }

    static byte[] body(GenericRecord event) {
        ByteBuffer body = (ByteBuffer) event.get("body");
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return bytes;
    }
}
