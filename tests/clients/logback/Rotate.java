import ch.qos.logback.classic.LoggerContext;
import ch.qos.logback.classic.encoder.PatternLayoutEncoder;
import ch.qos.logback.classic.spi.ILoggingEvent;
import ch.qos.logback.core.rolling.FixedWindowRollingPolicy;
import ch.qos.logback.core.rolling.RollingFileAppender;
import ch.qos.logback.core.rolling.SizeBasedTriggeringPolicy;
import ch.qos.logback.core.util.FileSize;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.config.Configurator;
import org.apache.logging.log4j.core.config.builder.api.*;

/** Writes 20,000 lines into a directory with Logback or Log4j2, which rotate and compress: Rotate logback|log4j DIRECTORY. */
public final class Rotate {
    static String line(String library, int number) {
        return library + " " + number + " a line of an ordinary log, which is rotated by its size " + number * 7919L % 1009;
    }

    public static void main(String[] arguments) throws Exception {
        String directory = arguments[1];
        if (arguments[0].equals("logback")) {
            logback(directory);
        } else {
            log4j(directory);
        }
    }

    static void logback(String directory) throws Exception {
        LoggerContext context = new LoggerContext();
        context.setMDCAdapter(new ch.qos.logback.classic.util.LogbackMDCAdapter());
        PatternLayoutEncoder encoder = new PatternLayoutEncoder();
        encoder.setContext(context);
        encoder.setPattern("%msg%n");
        encoder.start();
        RollingFileAppender<ILoggingEvent> appender = new RollingFileAppender<>();
        appender.setContext(context);
        appender.setFile(directory + "/app.log");
        appender.setEncoder(encoder);
        FixedWindowRollingPolicy policy = new FixedWindowRollingPolicy();
        policy.setContext(context);
        policy.setParent(appender);
        policy.setFileNamePattern(directory + "/app.%i.log.gz");
        policy.setMinIndex(1);
        policy.setMaxIndex(12);
        policy.start();
        SizeBasedTriggeringPolicy<ILoggingEvent> trigger = new SizeBasedTriggeringPolicy<>();
        trigger.setContext(context);
        trigger.setMaxFileSize(FileSize.valueOf("300KB"));
        trigger.setCheckIncrement(ch.qos.logback.core.util.Duration.buildByMilliseconds(0));
        trigger.start();
        appender.setRollingPolicy(policy);
        appender.setTriggeringPolicy(trigger);
        appender.start();
        ch.qos.logback.classic.Logger log = context.getLogger("rotate");
        log.addAppender(appender);
        for (int number = 0; number < 20000; number++) {
            log.info(line("logback", number));
        }
        // The last archive is compressed behind the writer.
        Thread.sleep(1000);
        context.stop();
    }

    static void log4j(String directory) {
        ConfigurationBuilder<?> builder = ConfigurationBuilderFactory.newConfigurationBuilder();
        builder.add(builder.newAppender("roll", "RollingFile")
            .addAttribute("fileName", directory + "/app.log")
            .addAttribute("filePattern", directory + "/app-%i.log.gz")
            .add(builder.newLayout("PatternLayout").addAttribute("pattern", "%m%n"))
            .addComponent(builder.newComponent("Policies")
                .addComponent(builder.newComponent("SizeBasedTriggeringPolicy").addAttribute("size", "300KB")))
            .addComponent(builder.newComponent("DefaultRolloverStrategy").addAttribute("max", 20)));
        builder.add(builder.newRootLogger(Level.INFO).add(builder.newAppenderRef("roll")));
        Configurator.initialize(builder.build());
        for (int number = 0; number < 20000; number++) {
            LogManager.getLogger("rotate").info(line("log4j", number));
        }
        LogManager.shutdown();
    }
}
