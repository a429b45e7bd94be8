import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FsShell;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.util.ToolRunner;

/** `hdfs dfs`, which logs in if the properties `principal` and `keytab` are set. */
public class Shell {
    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new HdfsConfiguration();
        String keytab = System.getProperty("keytab");
        if (keytab != null) {
            UserGroupInformation.setConfiguration(configuration);
            UserGroupInformation.loginUserFromKeytab(System.getProperty("principal"), keytab);
        }
        System.exit(ToolRunner.run(configuration, new FsShell(), arguments));
    }
}
