// Writes 30,000 lines into a directory with lumberjack, which rotates and compresses.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"
)

func main() {
	log := &lumberjack.Logger{Filename: filepath.Join(os.Args[1], "app.log"), MaxSize: 1, Compress: true}
	for number := 0; number < 30000; number++ {
		fmt.Fprintf(log, "go %d a line of an ordinary log, which is rotated by its size %d\n", number, number*7919%1009)
	}
	log.Close()
	// Archives are compressed behind the writer.
	for try := 0; try < 100; try++ {
		time.Sleep(100 * time.Millisecond)
		waiting, _ := filepath.Glob(filepath.Join(os.Args[1], "app-*.log"))
		if len(waiting) == 0 {
			return
		}
	}
	os.Exit(1)
}
