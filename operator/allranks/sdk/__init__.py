"""The Python interface: `allranks.run(function, ranks=-2)`. `allranks` imports it when it is first used."""
