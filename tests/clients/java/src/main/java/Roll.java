import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import org.apache.logging.log4j.core.config.Configurator;
import org.apache.logging.log4j.core.config.builder.api.*;

/** Logs numbered lines with log4j2 into rolling files in the working directory: Roll COUNT. */
public final class Roll {
    public static void main(String[] arguments) {
        ConfigurationBuilder<?> builder = ConfigurationBuilderFactory.newConfigurationBuilder();
        ComponentBuilder<?> policies = builder.newComponent("Policies")
            .addComponent(builder.newComponent("SizeBasedTriggeringPolicy").addAttribute("size", "20KB"));
        builder.add(builder.newAppender("roll", "RollingFile")
            .addAttribute("fileName", "java.log")
            .addAttribute("filePattern", "java-%i.log")
            .add(builder.newLayout("PatternLayout").addAttribute("pattern", "java %m%n"))
            .addComponent(policies));
        builder.add(builder.newRootLogger(Level.INFO).add(builder.newAppenderRef("roll")));
        Configurator.initialize(builder.build());
        Logger log = LogManager.getLogger("x");
        int count = Integer.parseInt(arguments[0]);
        for (int n = 0; n < count; n++) {
            log.info("{} of a program in Java", n);
        }
        LogManager.shutdown();
    }
}
