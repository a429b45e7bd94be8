// Writes 10,000 lines into a directory with a rotating transport: node rotate.js winston|daily|pino DIRECTORY
const [library, directory] = process.argv.slice(2)
const line = number => `${library} ${number} a line of an ordinary log, which is rotated by its size ${number * 7919 % 1009}`
const pause = () => new Promise(resolve => setTimeout(resolve, 10))

async function winston(transport) {
  const { createLogger, format } = require('winston')
  const log = createLogger({ format: format.printf(info => info.message), transports: [transport] })
  for (let number = 0; number < 10000; number++) {
    log.info(line(number))
    if (number % 100 === 99) await pause()
  }
  const finished = new Promise(resolve => transport.on('finish', resolve))
  log.end()
  await finished
  // Compression ends after the transport.
  await new Promise(resolve => setTimeout(resolve, 1000))
}

async function main() {
  if (library === 'winston') {
    const { transports } = require('winston')
    await winston(new transports.File({ filename: 'app.log', dirname: directory, maxsize: 200000, zippedArchive: true, tailable: false }))
  } else if (library === 'daily') {
    const Daily = require('winston-daily-rotate-file')
    await winston(new Daily({ filename: 'app.log', dirname: directory, maxSize: '200k', datePattern: '[day]', zippedArchive: true, auditFile: `${directory}/../audit-${process.pid}.json` }))
  } else {
    const stream = await require('pino-roll')({ file: `${directory}/app`, size: '200k', extension: '.log' })
    const log = require('pino')({ base: null, timestamp: false }, stream)
    for (let number = 0; number < 10000; number++) {
      log.info(line(number))
      if (number % 100 === 99) await pause()
    }
    await new Promise(resolve => { stream.on('close', resolve); stream.end() })
  }
}
main().then(() => process.exit(0))
