import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.apache.hadoop.minikdc.MiniKdc;

/** A Kerberos server for the tests: `Kdc DIRECTORY PORT`. Writes krb5.conf, server.keytab and client.keytab into the directory. */
public class Kdc {
    public static void main(String[] arguments) throws Exception {
        Path directory = Path.of(arguments[0]);
        Properties settings = MiniKdc.createConf();
        settings.setProperty(MiniKdc.KDC_PORT, arguments[1]);
        MiniKdc kdc = new MiniKdc(settings, directory.toFile());
        kdc.start();
        // Each call overwrites its file.
        kdc.createPrincipal(new File(directory.toFile(), "server.keytab"), "hdfs/localhost", "HTTP/localhost");
        kdc.createPrincipal(new File(directory.toFile(), "client.keytab"), "alice");
        Files.copy(kdc.getKrb5conf().toPath(), directory.resolve("krb5.conf"));
        Files.writeString(directory.resolve("ready"), kdc.getRealm());
        Thread.sleep(Long.MAX_VALUE);
    }
}
